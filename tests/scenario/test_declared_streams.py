"""Streams that the configuration declares: filled before a trainer is there, attached to by name, changed on SIGHUP."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.session import link
from torch.utils.data import DataLoader

from prefetchd.wire.errors import CallerError, DaemonRefusedError, DaemonUnavailableError
from prefetchd.wire.stream_spec import STORES
from tests.contract.declared_daemons import ram_disk
from tests.scenario.datasets import Numbers, equal
from tests.scenario.declared_datasets import shares
from tests.scenario.lookback_trainer import Told
from tests.scenario.raw_peer import Peer, attach_hello
from tests.scenario.waiting import is_gone, report_when, stream_when, until

NUMBERS = 'dataset = "tests.scenario.declared_datasets:numbers"\n'
SHARES = 'dataset = "tests.scenario.declared_datasets:shares"\n'


@pytest.fixture
def declare(daemon, tmp_path):
    """declare(text) writes the configuration and starts a daemon with it; or has the running one read it again."""
    file = tmp_path / "streams.toml"
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])

    def write(text, *options):
        running = file.exists()
        file.write_text(text)
        if running:
            os.kill(daemon.pid, signal.SIGHUP)
        else:
            daemon.start("--config", str(file), "--workers", "2", *options)
        return file

    return write


@pytest.fixture
def disk():
    with ram_disk() as found:
        yield found


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


WAITING = 'dataset = "tests.scenario.declared_datasets:waiting"\n'


def test_who_waits_for_the_look_at_the_dataset_is_told_so(daemon, declare, tmp_path, monkeypatch, capfd):
    go = tmp_path / "go"
    monkeypatch.setattr(link, "ANSWER_TIMEOUT_S", 3.0)
    declare(f"[streams.late]\n{WAITING}dataset_args = {{go = '{go}'}}\nbuffer = 8\n", "--name-waits-after", "0.2")
    said = []

    def enough() -> bool:
        said.append(capfd.readouterr().err)
        # So many are told in more than the time in which a daemon must answer.
        return "".join(said).count("stream 'late' is still being looked at: tests.scenario.declared_datasets:wait") > 35

    with ThreadPoolExecutor() as pool:
        attaching = pool.submit(PrefetchLoader.attach, "late")
        try:
            until(enough, "it is told again and again")
        finally:
            go.touch()
        attaching.result().close()


def zygotes(daemon) -> list[int]:
    """Of environments: torch is imported in them."""
    return [process.pid for process in daemon.processes() if process.name() == "prefetchd-env"]


def test_its_workers_environment_is_made_ready_while_the_dataset_is_looked_at(daemon, declare, tmp_path):
    go = tmp_path / "go"
    # Found as a second interpreter: threadpoolctl sets it where it is imported, and so it may have been set here.
    daemon.environment.pop("KMP_DUPLICATE_LIB_OK", None)
    declare(f"[streams.late]\n{WAITING}dataset_args = {{go = '{go}'}}\nbuffer = 8\n")
    early = until(lambda: zygotes(daemon), "there is one before anything is known of the stream")
    go.touch()
    stream_when(daemon, "late", ready(8))
    assert zygotes(daemon) == early, "it is the one that the stream is in"


def test_a_dataset_s_module_that_changes_the_environment_gets_what_it_made(daemon, declare, tmp_path):
    """The zygote that was started for what was told before is of no use then."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "shadowed_numbers.py").write_text("WIDTH = 3\n")
    declare(
        '[streams.changed]\ndataset = "tests.scenario.declared_datasets:beside"\n'
        f"dataset_args = {{directory = '{beside}'}}\nbatch_size = 4\nbuffer = 8\n"
    )
    stream_when(daemon, "changed", ready(8))
    with PrefetchLoader.attach("changed") as loader:
        assert next(iter(loader))[0].shape == (4, 3)
    assert len(zygotes(daemon)) == 2


def test_who_waits_for_a_stream_that_is_declared_no_more_is_told(daemon, declare, tmp_path):
    go = tmp_path / "go"
    declare(f"[streams.late]\n{WAITING}dataset_args = {{go = '{go}'}}\nbuffer = 8\n")
    with Peer(daemon.socket) as peer, Peer(daemon.socket) as other:
        peer.say(attach_hello("late"))
        # What was sent before is handled when this is answered.
        other.say(attach_hello("another"))
        other.refusal()
        declare(f"[streams.same]\n{NUMBERS}buffer = 8\n")
        assert "no stream 'late'" in peer.refusal().message


@pytest.mark.parametrize("store", ["shm", "ram_disk", "files"])
def test_an_attached_trainer_starts_the_daemon_again_as_it_was_declared(daemon, declare, store):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        kept = "" if store == "shm" else f"store = {{{store} = '{disk}'}}\n"
        declare(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 4\n{kept}")
        with PrefetchLoader.attach("train") as loader:
            batches = iter(loader)
            found = [next(batches)[1].clone()]
            pid = daemon.pid
            os.kill(pid, signal.SIGKILL)
            found += [numbers.clone() for _, numbers in batches]
            assert daemon.pid != pid
            assert torch.cat(found).tolist() == list(range(50))
            assert loader.stats()["reconnections"] == 1
            # It is adopted and served before it is known to be declared.
            stream_when(daemon, "train", lambda stream: stream["declared"], "it is a declared one")


@pytest.mark.parametrize(
    ("more", "are_kept"), [("", True), ('progress = {file = "progress.txt"}\n', False), ("epochs = 9\n", False)]
)
def test_equal_epochs_are_made_once_unless_somebody_counts_them(daemon, declare, tmp_path, more, are_kept):
    notes = tmp_path / "calls"
    factory = 'dataset = "tests.scenario.declared_datasets:deterministic"\n'
    declare(f"[streams.v]\n{factory}dataset_args = {{notes = '{notes}'}}\nbatch_size = 4\nbuffer = 120\n{more}")
    with PrefetchLoader.attach("v") as loader:
        assert loader.spec.equal_epochs is are_kept
        if are_kept:
            first = [[each.clone() for each in batch] for batch in loader]
            assert all(equal([each.clone() for each in batch], other) for batch, other in zip(loader, first))
            assert len(Told(notes).steps()) == len(loader.dataset)


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
    # The snapshot that tells of it is written a moment later.
    report_when(daemon, lambda report: report.snapshot["declared"][0]["failure"], "it has failed")
    done = daemon.command("status", "--json", check=False)
    assert done.returncode == 3
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem.startswith("declared stream train has failed: ")
    assert re.search(why, problem)


DYING = """[streams.train]
dataset = "tests.scenario.declared_datasets:dying"
dataset_args = {{lives = "{lives}", times = {times}, how = "os{how}"}}
batch_size = 4
buffer = 6
"""


@pytest.mark.parametrize(("how", "times"), [(".kill(os.getpid(), 9)", 4), ("._exit(3)", 1)], ids=["killed", "exits"])
def test_a_look_at_the_dataset_that_dies_is_begun_again(daemon, declare, tmp_path, how, times):
    """Found by chaos: that it was killed once was the end of the stream."""
    declare(DYING.format(lives=tmp_path / "lives", times=times, how=how))
    with PrefetchLoader.attach("train") as loader:
        assert equal(list(loader), list(DataLoader(Numbers(50), 4)))


def test_a_look_at_the_dataset_that_always_dies_is_told_with_how(daemon, declare, tmp_path):
    declare(DYING.format(lives=tmp_path / "lives", times=100, how="._exit(3)"))
    with pytest.raises(DaemonRefusedError, match="it exited with 3, 4 times in a row; its output is in the log"):
        PrefetchLoader.attach("train")
    assert len((tmp_path / "lives").read_text()) == 4


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


@pytest.mark.parametrize("store", STORES)
def test_read_again_what_is_declared_as_before_keeps_its_ring(daemon, declare, disk, store):
    stored = "" if store == "shm" else f'store = {{{store} = "{disk}"}}\n'
    same = f"[streams.same]\n{NUMBERS}batch_size = 4\nbuffer = 6\n{stored}"
    declare(f"{same}[streams.other]\n{NUMBERS}buffer = 6\n[streams.goes]\n{NUMBERS}buffer = 6\n")
    before = {name: stream_when(daemon, name, ready(6)) for name in ("same", "other", "goes")}
    inodes = {path.name: path.stat().st_ino for path in disk.iterdir()}
    declare(f"{same}[streams.other]\n{NUMBERS}buffer = 7\n[streams.comes]\n{NUMBERS}buffer = 6\n")
    stream_when(daemon, "comes", ready(6))
    other = stream_when(daemon, "other", ready(7))
    same = stream_when(daemon, "same")
    assert same["ring"]["segment"] == before["same"]["ring"]["segment"]
    assert same["produced_batches"] == before["same"]["produced_batches"]
    assert {path.name: path.stat().st_ino for path in disk.iterdir()} == inodes
    assert other["ring"]["segment"] != before["other"]["ring"]["segment"]
    with pytest.raises(CallerError, match="no stream 'goes'"):
        PrefetchLoader.attach("goes")


def is_told(daemon, why: str) -> None:
    """The status has it as a problem."""
    until(lambda: why in daemon.command("status", check=False).stdout, "status says so")
    assert daemon.command("status", check=False).returncode == 3


def test_a_declared_stream_that_was_evicted_is_told_and_begun_anew_by_a_reload(daemon, declare):
    """Found as one that was well in status, and never came back."""
    declare(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\n")
    stream_when(daemon, "train", ready(8))
    daemon.command("evict", "--force", "train")
    is_told(daemon, "declared stream train has failed: it was dropped")
    with pytest.raises(DaemonRefusedError, match="it was dropped"):
        PrefetchLoader.attach("train")
    daemon.command("reload")
    stream_when(daemon, "train", ready(8))
    with PrefetchLoader.attach("train") as loader:
        assert len(list(loader)) == 13


def test_a_declared_stream_whose_ring_did_not_fit_is_begun_anew_by_a_reload(daemon, declare):
    text = f"[streams.train]\n{NUMBERS}batch_size = 4\n"
    file = declare(f"{text}buffer = '200MB'\n", "--memory", "16MB")
    is_told(daemon, "stream train has failed")
    daemon.command("reload")
    until(lambda: daemon.paths.log.read_text().count('"stream declared"') == 2, "it is begun anew")
    is_told(daemon, "stream train has failed")
    file.write_text(f"{text}buffer = 8\n")
    daemon.command("reload")
    stream_when(daemon, "train", ready(8))


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


def test_warm_does_not_wait_for_a_first_batch_that_has_failed(daemon, tmp_path):
    file = tmp_path / "streams.toml"
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    file.write_text('[streams.train]\ndataset = "tests.scenario.declared_datasets:BadFromTheBeginning"\n')
    done = daemon.command("warm", "--config", str(file), check=False, timeout=100)
    assert done.returncode == 1
    assert "stream 'train': its first batch has failed" in done.stderr
    with PrefetchLoader.attach("train") as loader, pytest.raises(ValueError, match="there is no sample 0"):
        next(iter(loader))


@pytest.mark.parametrize("store", STORES)
def test_warm_waits_for_a_daemon_that_runs_already(daemon, declare, disk, store):
    stored = "" if store == "shm" else f'store = {{{store} = "{disk}"}}\n'
    file = declare(f"[streams.train]\n{NUMBERS}buffer = 12\nlow_watermark = 5\nhigh_watermark = 10\n{stored}")
    pid = daemon.pid
    assert daemon.command("warm", "--config", str(file), timeout=100).returncode == 0
    assert stream_when(daemon, "train")["batches_ready"] >= 5
    assert daemon.pid == pid
    daemon.command("stop")


def test_a_conflicting_directory_on_reading_again_changes_nothing(daemon, declare, disk):
    same = f'[streams.same]\n{NUMBERS}buffer = 6\nstore = {{files = "{disk}"}}\n'
    declare(same)
    before = stream_when(daemon, "same", ready(6))
    declare(f'{same}[streams.other]\n{NUMBERS}buffer = 6\nstore = {{files = "{disk}"}}\n')
    until(lambda: "configuration not taken" in daemon.paths.log.read_text(), "the mistake is in the log")
    assert "a directory of its own; stream 'same' has that one" in daemon.paths.log.read_text()
    same = stream_when(daemon, "same")
    assert same["ring"]["segment"] == before["ring"]["segment"]
    assert len(list(disk.glob("*.safetensors"))) == 6
    daemon.command("stop")


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
    assert "stream 'other' has failed" in done.stderr, "the daemon has read it again"
