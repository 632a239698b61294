"""Streams that the configuration declares: filled before a trainer is there, attached to by name, changed on SIGHUP."""

from __future__ import annotations

import os
import re
import signal

import pytest
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from prefetchd.wire.errors import CallerError, DaemonRefusedError, DaemonUnavailableError
from tests.scenario.datasets import Numbers, equal
from tests.scenario.declared_datasets import shares
from tests.scenario.watching import is_gone, stream_when, until

NUMBERS = 'dataset = "tests.scenario.declared_datasets:numbers"\n'
SHARES = 'dataset = "tests.scenario.declared_datasets:shares"\n'


@pytest.fixture
def declare(daemon, tmp_path):
    """declare(text) writes the configuration and starts a daemon with it; or has the running one read it again."""
    file = tmp_path / "streams.toml"
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])

    def write(text):
        running = file.exists()
        file.write_text(text)
        if running:
            os.kill(daemon.pid, signal.SIGHUP)
        else:
            daemon.start("--config", str(file), "--workers", "2")
        return file

    return write


def ready(count):
    return lambda stream: stream["ring"] is not None and stream["ring"]["ready"] >= count


def test_a_declared_stream_is_full_before_a_trainer_comes_and_gives_what_a_loader_gives(daemon, declare):
    declare(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\nshuffle = true\nseed = 3\n")
    stream_when(daemon, "train", ready(8))
    with PrefetchLoader.attach("train") as loader:
        assert (len(loader), len(loader.dataset), loader.batch_size) == (13, 50, 4)
        found = [batch for _ in range(2) for batch in loader]
        with pytest.raises(CallerError):
            loader.dataset[0]
    with PrefetchLoader(Numbers(50), batch_size=4, shuffle=True, seed=3) as other:
        expected = [batch for _ in range(2) for batch in other]
    assert all(map(equal, found, expected))
    assert len(found) == 26


def test_the_next_trainer_finds_it_filled_where_the_last_one_stopped(daemon, declare):
    declare(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\n")
    loader = PrefetchLoader.attach("train")
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = loader.state_dict()
    del iterator
    loader.close()
    stream = stream_when(daemon, "train", ready(8))
    assert not stream["lingering"]
    produced = stream["produced_batches"]
    with PrefetchLoader.attach("train") as loader:
        loader.load_state_dict(state)
        _, numbers = next(iter(loader))
    assert numbers.tolist() == [24, 25, 26, 27]
    assert stream_when(daemon, "train")["produced_batches"] - produced <= 8


def test_who_attaches_too_early_waits_for_the_look_at_the_dataset(daemon, declare):
    declare(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\n")
    with PrefetchLoader.attach("train") as loader:
        assert len(list(loader)) == 13


def test_what_is_not_declared_cannot_be_attached_to(daemon, declare):
    with pytest.raises(DaemonUnavailableError, match="prefetchd run --config"):
        PrefetchLoader.attach("train")
    declare(f"[streams.train]\n{NUMBERS}")
    with pytest.raises(CallerError, match="no stream 'test' to attach to; there are: "):
        PrefetchLoader.attach("test")
    with pytest.raises(CallerError):
        PrefetchLoader.attach("")


def test_an_iterable_dataset_is_shared_out_to_as_many_workers_as_are_declared(daemon, declare):
    declare(f"[streams.it]\n{SHARES}batch_size = 3\nworkers = 2\nbuffer = 8\n")
    stream_when(daemon, "it", ready(8))
    wanted = list(DataLoader(shares(), 3, num_workers=2))
    with PrefetchLoader.attach("it") as loader:
        assert all(map(equal, loader, wanted))
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        with pytest.raises(TypeError):
            len(loader)
        with pytest.raises(CallerError):
            iter(loader.dataset)
    with PrefetchLoader.attach("it") as loader:
        loader.load_state_dict(state)
        assert all(map(equal, loader, wanted[3:]))


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("shuffle = true\n", "shuffle = true; allowed for an IterableDataset: false"),
        ('on_error = "skip"\n', "on_error='skip'; allowed for an IterableDataset: 'raise'"),
        (
            'workers = 2\nprogress = {file = "progress.txt"}\n',
            "workers = 2; allowed for an IterableDataset: workers = 1",
        ),
        ("store = {files = DIRECTORY}\n", "store = {files = ...}; allowed for an IterableDataset:"),
    ],
)
def test_what_an_iterable_dataset_cannot_have_is_told(declare, tmp_path, lines, why):
    (tmp_path / "disk").mkdir()
    declare(f"[streams.it]\n{SHARES}{lines}".replace("DIRECTORY", f'"{tmp_path / "disk"}"'))
    with pytest.raises(DaemonRefusedError, match=re.escape(why)):
        PrefetchLoader.attach("it")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tests.scenario.declared_datasets:failing", "ValueError: there is no data here"),
        ("tests.scenario.declared_datasets:mapping", "made a dict_keys; allowed: a dataset"),
        ("tests.no_such_module:make", "No module named"),
        ("tests.scenario.declared_datasets:nothing", "has no attribute 'nothing'"),
    ],
)
def test_a_dataset_that_cannot_be_made_is_told_to_who_attaches(daemon, declare, name, why):
    declare(f'[streams.train]\ndataset = "{name}"\n')
    with pytest.raises(DaemonRefusedError, match=why):
        PrefetchLoader.attach("train")


def test_an_interpreter_that_is_not_there_is_told(daemon, declare):
    declare(f'[streams.train]\n{NUMBERS}python = "/no/such/python"\n')
    with pytest.raises(DaemonRefusedError, match="/no/such/python: No such file"):
        PrefetchLoader.attach("train")


def test_the_dataset_is_made_in_the_declared_directory_and_environment(daemon, declare, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    declare(
        f'[streams.train]\ndataset = "tests.scenario.declared_datasets:environment"\ndataset_args = {{name = "WHO"}}\n'
        f'cwd = "{place}"\nenv = {{WHO = "declared"}}\nbatch_size = 2\nbuffer = 4\n'
    )
    with PrefetchLoader.attach("train") as loader:
        assert list(loader) == [["declared", str(place)]]


def test_read_again_what_is_declared_as_before_keeps_its_ring(daemon, declare):
    same = f"[streams.same]\n{NUMBERS}batch_size = 4\nbuffer = 6\n"
    declare(f"{same}[streams.other]\n{NUMBERS}buffer = 6\n[streams.goes]\n{NUMBERS}buffer = 6\n")
    before = {name: stream_when(daemon, name, ready(6)) for name in ("same", "other", "goes")}
    declare(f"{same}[streams.other]\n{NUMBERS}buffer = 7\n[streams.comes]\n{NUMBERS}buffer = 6\n")
    stream_when(daemon, "comes", ready(6))
    other = stream_when(daemon, "other", ready(7))
    same = stream_when(daemon, "same")
    assert same["ring"]["segment"] == before["same"]["ring"]["segment"]
    assert same["produced_batches"] == before["same"]["produced_batches"]
    assert other["ring"]["segment"] != before["other"]["ring"]["segment"]
    with pytest.raises(CallerError, match="no stream 'goes'"):
        PrefetchLoader.attach("goes")


def test_a_file_that_is_wrong_changes_nothing(daemon, declare):
    declare(f"[streams.same]\n{NUMBERS}buffer = 6\n")
    before = stream_when(daemon, "same", ready(6))
    declare(f"[streams.same]\n{NUMBERS}buffer = 2\n")
    until(lambda: "configuration not taken" in daemon.paths.log.read_text(), "the mistake is in the log")
    assert stream_when(daemon, "same")["ring"]["segment"] == before["ring"]["segment"]


def test_a_killed_daemon_is_replaced_and_the_declared_ring_kept(daemon, declare):
    file = declare(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\n")
    before = stream_when(daemon, "train", ready(8))
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")
    daemon.start("--config", str(file))
    with PrefetchLoader.attach("train") as loader:
        assert len(list(loader)) == 13
    after = stream_when(daemon, "train")
    assert after["ring"]["segment"] == before["ring"]["segment"]


def test_a_wrong_file_starts_nothing(daemon, tmp_path):
    file = tmp_path / "streams.toml"
    file.write_text("[streams.train]\nbuffer = 2\n")
    done = daemon.command("run", "--config", str(file), check=False)
    assert done.returncode == 1
    assert f"{file}:1: streams.train.dataset is nothing" in done.stderr
    assert f"{file}:2: streams.train.buffer is 2" in done.stderr
    assert not daemon.socket.exists()


def test_warm_returns_when_the_low_watermark_is_reached(daemon, tmp_path):
    file = tmp_path / "streams.toml"
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    file.write_text(
        f"[streams.low]\n{NUMBERS}buffer = 12\nlow_watermark = 5\nhigh_watermark = 10\n"
        f"[streams.full]\n{NUMBERS}buffer = 6\n[streams.ends]\n{NUMBERS}batch_size = 20\nbuffer = 20\nepochs = 2\n"
    )
    assert daemon.command("warm", "--config", str(file), timeout=100).returncode == 0
    found = {name: stream_when(daemon, name) for name in ("low", "full", "ends")}
    assert found["low"]["batches_ready"] >= 5
    assert found["full"]["batches_ready"] == 6
    assert found["ends"]["batches_ready"] == 6, "two epochs of three"


def test_warm_says_when_its_time_is_over(daemon, tmp_path):
    file = tmp_path / "streams.toml"
    slow = 'dataset = "tests.scenario.declared_datasets:slow"\ndataset_args = {sample_s = 60}\n'
    file.write_text(f"[streams.train]\n{slow}buffer = 4\n")
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    done = daemon.command("warm", "--config", str(file), "--timeout", "0.1", check=False)
    assert done.returncode == 3
    assert "not warm within 0.1 s: stream 'train' has 0 batches ready" in done.stderr


def test_warm_says_when_it_will_never_be(daemon, tmp_path):
    file = tmp_path / "streams.toml"
    file.write_text('[streams.train]\ndataset = "tests.no_such_module:make"\n')
    done = daemon.command("warm", "--config", str(file), check=False)
    assert done.returncode == 1
    assert "stream 'train' has failed: making the declared dataset: ModuleNotFoundError" in done.stderr
    file.write_text('[streams.other]\ndataset = "tests.no_such_module:make"\n')
    done = daemon.command("warm", "--config", str(file), check=False)
    assert done.returncode == 1
    assert "does not declare 'other'" in done.stderr
