"""A daemon that runs takes a configuration on: `prefetchd reload`, and `prefetchd warm` by itself."""

from __future__ import annotations

import os
import re
import signal

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.status.snapshot import read_report
from tests.scenario.datasets import Numbers
from tests.scenario.test_daemon_dies import kill
from tests.scenario.test_declared_streams import NUMBERS, ready
from tests.scenario.waiting import stream_when, until

TRAIN = f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\n"
OTHER = f"[streams.other]\n{NUMBERS}batch_size = 5\nbuffer = 6\n"


@pytest.fixture
def file(daemon, tmp_path):
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    found = tmp_path / "streams.toml"
    found.write_text(TRAIN)
    return found


def declared(daemon) -> list[str]:
    return [each["name"] for each in read_report(daemon.paths).snapshot["declared"]]


def config(daemon) -> str:
    return read_report(daemon.paths).snapshot["daemon"]["config"]


def refused(daemon, *arguments):
    done = daemon.command(*arguments, check=False)
    assert done.returncode == 1
    return done.stderr


def test_a_daemon_without_a_configuration_takes_one_on(daemon, file):
    daemon.start()
    pid = daemon.pid
    assert "started without" in refused(daemon, "reload")
    assert daemon.command("reload", "--config", str(file)).stdout == f"{file}: 1 declared\nbegun train\n"
    stream_when(daemon, "train", ready(8))
    assert (daemon.pid, config(daemon)) == (pid, str(file))
    with PrefetchLoader.attach("train") as loader:
        assert len(list(loader)) == 13


def test_what_is_declared_as_before_goes_on_and_what_differs_is_told(daemon, file):
    daemon.start("--config", str(file))
    before = stream_when(daemon, "train", ready(8))
    file.write_text(f"[daemon]\nworkers = 3\nmemory = '1GB'\n{TRAIN}{OTHER}")
    assert daemon.command("reload").stdout == (
        f"{file}: 2 declared\nbegun other\nfrom the next start on: workers, memory of [daemon]; `prefetchd restart`\n"
    )
    assert "from the next start on" in daemon.command("reload").stdout, "it is not in force yet"
    stream_when(daemon, "other", ready(6))
    assert stream_when(daemon, "train")["ring"]["segment"] == before["ring"]["segment"]
    file.write_text(OTHER.replace("5", "4"))
    assert daemon.command("reload").stdout == f"{file}: 1 declared\nended train\nended other\nbegun other\n"
    assert declared(daemon) == ["other"]


@pytest.mark.parametrize("wrong", ["wrong", "missing", "directory", "pipe", "text"])
def test_what_cannot_be_used_is_told_and_changes_nothing(daemon, file, tmp_path, wrong):
    daemon.start("--config", str(file))
    before = stream_when(daemon, "train", ready(8))
    other = tmp_path / "other.toml"
    expected = "cannot be read: "
    if wrong == "wrong":
        other.write_text("[streams.train]\nbuffer = 2\n[daemon]\nworkers = 0\n")
        expected = f"{other}:2: streams.train.buffer is 2"
    elif wrong == "directory":
        other.mkdir()
    elif wrong == "pipe":
        os.mkfifo(other)
    elif wrong == "text":
        other.write_bytes(b"\xff")
    said = refused(daemon, "reload", "--config", str(other))
    assert expected in said
    assert wrong != "wrong" or f"{other}:4: daemon.workers is 0" in said, "all of it is told"
    assert (declared(daemon), config(daemon)) == (["train"], str(file))
    assert stream_when(daemon, "train")["ring"]["segment"] == before["ring"]["segment"]
    assert "begun" not in daemon.command("reload").stdout


def test_a_directory_that_somebody_else_has_changes_nothing(daemon, file, tmp_path):
    daemon.start("--config", str(file))
    stream_when(daemon, "train", ready(8))
    taken = tmp_path / "taken"
    taken.write_text("no directory")
    other = tmp_path / "other.toml"
    other.write_text(f"{OTHER}store = {{files = '{taken}'}}\n")
    assert str(taken) in refused(daemon, "reload", "--config", str(other))
    assert (declared(daemon), config(daemon)) == (["train"], str(file))
    assert stream_when(daemon, "train")["ring"]["ready"] == 8


def test_while_a_stream_is_filled_nothing_of_it_is_made_again(daemon, file):
    """It is declared as before."""
    file.write_text("[streams.slow]\ndataset = 'tests.scenario.declared_datasets:slow'\nbuffer = 40\n")
    daemon.start("--config", str(file))
    stream_when(daemon, "slow", ready(1))
    for _ in range(5):
        assert daemon.command("reload").stdout == f"{file}: 1 declared\n"
    stream = stream_when(daemon, "slow", ready(40), "it is filled")
    assert stream["produced_batches"] == 40


def test_a_trainer_starts_the_next_daemon_with_what_was_taken_on(daemon, file):
    """Also one that came before that."""
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        next(iterator)
        daemon.command("reload", "--config", str(file))
        stream_when(daemon, "train", ready(8))
        # It hears of it in one of these.
        for _ in range(20):
            next(iterator)
        kill(daemon)
        assert len(list(iterator)) == 79
    assert config(daemon) == str(file)
    assert declared(daemon) == ["train"]


def test_sighup_without_a_configuration_is_in_the_log_and_harmless(daemon):
    daemon.start()
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: "no configuration to read again" in daemon.paths.log.read_text(), "it is logged")
    assert "no daemon on" not in daemon.command("status").stdout


# --- warm ---


def test_warm_has_the_daemon_of_a_trainer_take_its_configuration_on(daemon, file):
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        next(iter(loader))
        pid = daemon.pid
        assert daemon.command("warm", "--config", str(file), timeout=100).returncode == 0
        assert daemon.pid == pid
        assert stream_when(daemon, "train")["batches_ready"] == 8
        file.write_text(TRAIN + OTHER)
        daemon.command("warm", "--config", str(file), timeout=100)
        assert stream_when(daemon, "other")["batches_ready"] == 6


def test_warm_leaves_a_daemon_with_another_configuration_alone(daemon, file, tmp_path):
    daemon.start("--config", str(file))
    other = tmp_path / "other.toml"
    other.write_text(OTHER)
    said = refused(daemon, "warm", "--config", str(other))
    assert f"it has another configuration, {file}: `prefetchd reload --config {other}`" in said
    assert (declared(daemon), config(daemon)) == (["train"], str(file))
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert daemon.command("warm", "--config", str(link), timeout=100).returncode == 0, "it is the same file"


def test_warm_says_how_far_it_is_where_no_terminal_looks(daemon, file):
    file.write_text(
        "[streams.slow]\ndataset = 'tests.scenario.declared_datasets:slow'\ndataset_args = {sample_s = 0.2}\n"
        "buffer = 12\nworkers = 1\n"
    )
    said = daemon.command("warm", "--config", str(file), timeout=100).stderr
    assert re.search(r"^stream 'slow' has \d+( of 12)? batches ready.* \(\d+ s\)$", said, re.M)
