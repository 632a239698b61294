"""The RAM-disk buffer: a trainer that knows nothing of us, a directory of batches, and a text file of two lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from prefetchd_client import BatchDirectory, PrefetchLoader
from prefetchd_client.session import long_wait

from prefetchd.wire.batch_file import file_name, temporary_name
from prefetchd.wire.errors import CallerError, ProtocolError, RemoteError
from tests.contract.declared_daemons import Declared, ram_disk
from tests.scenario.datasets import equal
from tests.scenario.declared_datasets import labelled
from tests.scenario.waiting import until

LINES = """
dataset = "tests.scenario.declared_datasets:labelled"
dataset_args = {length = 80}
batch_size = 4
buffer = 10
low_watermark = 6
high_watermark = 10
"""
STEPS = 20
PAGE = "batch-files.md"


@pytest.fixture
def disk():
    with ram_disk() as found:
        yield found


@pytest.fixture
def declared(daemon, tmp_path, disk):
    found = Declared(daemon, tmp_path, disk, "files", "file", LINES)
    yield found
    daemon.stop_and_check()


def names(*positions):
    return [file_name(position) for position in positions]


def run(epoch, first, end):
    return [(epoch, step) for step in range(first, end)]


def files_become(declared, positions, what="the files"):
    until(lambda: declared.files() == names(*positions), what)


def test_it_follows_the_file_wherever_that_goes(declared):
    declared.start()
    files_become(declared, run(0, 0, 10), "filled from the beginning before there is a progress file")
    declared.at(0, 3)
    files_become(declared, run(0, 3, 10), "what was passed is gone, and more than the low watermark waits")
    declared.at(0, 5)
    files_become(declared, run(0, 5, 15), "filled up again")
    declared.at(0, 17)
    files_become(declared, [*run(0, 17, 20), *run(1, 0, 7)], "a jump ahead, over the end of the epoch")
    declared.at(0, 2)
    files_become(declared, run(0, 2, 12), "a jump back")
    declared.at(7, 0)
    files_become(declared, run(7, 0, 10), "another epoch")
    declared.at(6, STEPS)
    files_become(declared, run(7, 0, 10), "an epoch's end is the next one's begin")
    declared.progress.unlink()
    stream = declared.when(lambda found: found["progress"]["epoch"] == 7)
    assert stream["progress"]["unreadable"] == 0
    assert declared.files() == names(*run(7, 0, 10))


def test_it_follows_the_file_by_the_watch_long_before_the_next_look(declared):
    text = declared.config.read_text()
    declared.config.write_text(text.replace('progress.txt"}', 'progress.txt", poll = 1000}'))
    assert declared.config.read_text() != text
    declared.start()
    files_become(declared, run(0, 0, 10))
    declared.at(0, 5)
    files_become(declared, run(0, 5, 15))
    declared.at(0, 1)
    files_become(declared, run(0, 1, 11), "a jump back, which counts when it is read twice")


def test_what_cannot_be_read_is_counted_and_shown_and_changes_nothing(declared):
    declared.start()
    declared.at(1, 4)
    files_become(declared, run(1, 4, 14))
    for count, (text, told) in enumerate(
        [
            ("nonsense", "nonsense"),
            (f"1\n{STEPS + 1}\n", f"allowed: 0 to {STEPS}"),
            ("99999999999999999999\n0\n", "allowed: two lines"),
        ],
        1,
    ):
        declared.progress.write_text(text)
        found = declared.when(lambda stream, count=count: stream["progress"]["unreadable"] == count)["progress"]
        assert told in found["complaint"]
        assert (found["epoch"], found["step"]) == (1, 4)
    assert declared.files() == names(*run(1, 4, 14))


def test_a_plan_that_ends_is_not_filled_beyond_its_end(declared):
    declared.declare(LINES + "epochs = 2\n")
    declared.start()
    declared.at(1, 15)
    files_become(declared, run(1, 15, 20))
    declared.at(2, 1)
    found = declared.when(lambda stream: stream["progress"]["unreadable"] == 1)["progress"]
    assert found["complaint"] == "it says epoch 2, batch 1; allowed: up to 2, 0, where the plan ends"
    declared.at(2, 0)
    files_become(declared, [], "all is consumed")
    # Its consumer is not late where there is nothing more.
    first = declared.when(lambda stream: stream["recent"])["recent"]
    since_s = first["consumer_s"] + 1.5
    later = declared.when(lambda stream: stream["recent"]["consumer_s"] > since_s, "it is at the end for a while")
    assert later["recent"]["stalled_s"] < first["stalled_s"] + 0.5


def test_filling_stops_at_the_high_watermark_and_resumes_below_the_low_one(declared):
    declared.start()
    files_become(declared, run(0, 0, 10))
    declared.at(0, 4)
    files_become(declared, run(0, 4, 10))
    stream = declared.when(lambda found: found["progress"]["step"] == 4)
    assert stream["produced_batches"] == 10, "six wait: not fewer than the low watermark"
    declared.at(0, 5)
    files_become(declared, run(0, 5, 15))
    assert declared.when(lambda found: found["produced_batches"] >= 15)["produced_batches"] == 15


DATASET = 'dataset = "tests.scenario.declared_datasets:{}"\n'
EQUAL = DATASET.format("labelled") + "dataset_args = {length = 80, width = 150}\n"
VARYING = DATASET + 'dataset_args = {{length = 40}}\ncollate_fn = "tests.scenario.declared_datasets:padded"\n'


@pytest.mark.parametrize(
    ("lines", "bound", "least"),
    [
        # Small batches are charged whole pages and a sixteenth more.
        (EQUAL, 160 << 10, 0.55),
        # Larger ones than the first take several places, the last of them not to the end.
        (VARYING.format("growing"), 16 << 20, 0.4),
        (VARYING.format("jumping"), 16 << 20, 0.4),
    ],
    ids=["equal", "growing", "a jump"],
)
def test_the_bound_in_bytes_is_never_passed(declared, lines, bound, least):
    """Not for an instant, with what is half written: somebody looks all the time while a trainer takes what comes."""
    declared.declare(f'{lines}batch_size = 4\nbuffer = "{bound}"\nlow_watermark = 6\nhigh_watermark = 100\n')
    most, done = [0], threading.Event()

    def look():
        while not done.is_set():
            total = 0
            with os.scandir(declared.ram_disk) as entries:
                for entry in entries:
                    try:
                        total += os.stat(entry.path).st_blocks * 512
                    except FileNotFoundError:
                        continue
            most[0] = max(most[0], total)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        declared.start()
        batches = declared.directory()
        for _ in range(6):
            for _ in batches:
                pass
        # A machine that is busy elsewhere may have made no more than was taken at once.
        until(lambda: most[0] > bound * least, "as much is ready as there is room for")
    finally:
        done.set()
        watcher.join()
    told = json.loads((declared.ram_disk / "stream.json").read_text())
    assert told["bound_bytes"] == bound
    assert most[0] <= bound


def test_our_iterator_gives_the_batches_of_a_loader(declared, monkeypatch):
    declared.start()
    with PrefetchLoader.attach("train") as attached:
        assert len(attached) == STEPS
    batches = declared.directory()
    found = []
    for _ in range(2):
        found += list(batches)
    assert len(batches) == STEPS
    assert batches.state_dict() == {"epoch": 2, "step": 0}
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    with PrefetchLoader(labelled(80), batch_size=4) as loader:
        expected = [batch for _ in range(2) for batch in loader]
    assert all(map(equal, found, expected))
    batches.load_state_dict({"epoch": 1, "step": STEPS - 1})
    assert equal(next(iter(batches)), expected[-1])
    # Their files are long gone.
    assert equal(found[0], expected[0])


def test_a_long_wait_for_a_file_is_named(disk, monkeypatch, capsys):
    for name in ("NAME_AFTER_S", "DAEMON_NAMES_WITHIN_S"):
        monkeypatch.setattr(long_wait, name, 0.0)
    with pytest.raises(RemoteError):
        len(BatchDirectory(disk, timeout=0.05))
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"waiting for epoch 0 step 0 .* for 0 s: stream\.json is not there; `prefetchd status`", line)


def test_a_forked_child_does_not_say_where_its_parent_is(disk, tmp_path):
    progress = tmp_path / "progress.txt"
    batches = BatchDirectory(disk, progress, epoch=3)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            for use in (lambda: next(iter(batches)), lambda: batches.set_epoch(5)):
                try:
                    use()
                except Exception as error:
                    os.write(writing, type(error).__name__.encode() + b" ")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ForkedError ForkedError "
    assert progress.read_text() == "3\n0\n"


def test_an_iterator_without_a_daemon_waits_as_long_as_it_is_told(disk):
    with pytest.raises(RemoteError, match=r"stream\.json has not come within 0\.05 s"):
        len(BatchDirectory(disk, timeout=0.05))
    with pytest.raises(CallerError, match="allowed: a whole number from 0"):
        BatchDirectory(disk, epoch=-1)


@pytest.mark.parametrize("kind", ["pytorch", "numpy"])
def test_the_trainers_of_the_docs_run_without_our_client(declared, tmp_path, kind):
    text = Path(__file__).parents[2].joinpath("docs", PAGE).read_text("utf-8")
    found = re.search(
        rf"<!-- run by tests/scenario/test_batches_as_files.py: {kind} -->\n```python\n(.*?)```", text, re.S
    )
    assert found is not None
    assert len(found.group(1).splitlines()) <= 15
    declared.start()
    script = tmp_path / "trainer.py"
    script.write_text(
        found.group(1)
        .replace('"ram"', repr(str(declared.ram_disk)))
        .replace('"progress.txt"', repr(str(declared.progress)))
    )
    code = (
        "import sys; sys.modules['prefetchd'] = sys.modules['prefetchd_client'] = None; exec(open(sys.argv[1]).read())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{2 * STEPS} batches"


# --- faults ---


def test_a_batch_that_cannot_be_made_has_its_error_in_its_place(declared):
    declared.declare(LINES.replace(":labelled", ":bad_at_nine"))
    declared.start()
    batches = declared.directory()
    iterator = iter(batches)
    assert [next(iterator)["label"].tolist()[0] for _ in range(2)] == [0, 4]
    with pytest.raises(RemoteError, match=r"epoch 0, batch 2 cannot be made: .*ValueError: nine is bad"):
        next(iterator)
    assert next(iter(batches))["label"].tolist() == [12, 13, 14, 15]
    declared.at(0, 4)
    until(lambda: not list(declared.ram_disk.glob("*.error")), "what was passed is gone")


def test_a_first_batch_that_cannot_be_made_has_its_error_too_and_is_told(daemon, declared):
    """Found as a reader that waited for ever beside a daemon that called itself healthy: there was no file, no line in
    the log and nothing on the screen."""
    declared.declare(LINES.replace(":labelled", ":bad_at_zero"))
    declared.start()

    def ill():
        done = daemon.command("status", check=False)
        return done if done.returncode == 3 else None

    # Before somebody has read the error, and so passed the batch.
    done = until(ill, "status says so")
    assert "the first batch of train cannot be made" in " ".join(done.stdout.split())
    assert "its first batch cannot be made" in done.stdout
    batches = declared.directory()
    with pytest.raises(RemoteError, match=r"epoch 0, batch 0 cannot be made: .*ValueError: zero is bad"):
        next(iter(batches))
    log = daemon.paths.log.read_text()
    assert log.count("batch cannot be made") == 1
    assert "ValueError: zero is bad" in log
    assert next(iter(batches))["label"].tolist() == [4, 5, 6, 7]
    until(lambda: daemon.command("status", check=False).returncode == 0, "it goes on")


def test_files_that_somebody_removes_are_made_again(declared):
    declared.start()
    files_become(declared, run(0, 0, 10))
    for name in declared.files()[3:5] + ["stream.json"]:
        (declared.ram_disk / name).unlink()
    until(lambda: (declared.ram_disk / "stream.json").exists(), "the description is there again")
    files_become(declared, run(0, 0, 10), "made again")
    assert "batch removed by somebody else" in declared.daemon.paths.log.read_text()


def test_what_is_not_ours_stays_and_what_is_another_streams_goes(declared):
    notes, stale = declared.ram_disk / "notes.txt", declared.ram_disk / file_name((0, 50))
    half = declared.ram_disk / temporary_name((0, 51), 77)
    for path in (notes, stale, half):
        path.write_text("somebody's")
    declared.start()
    files_become(declared, run(0, 0, 10))
    assert notes.read_text() == "somebody's"
    assert not stale.exists()
    assert not half.exists()


def test_a_second_daemon_on_the_directory_refuses(declared, tmp_path_factory):
    from tests.conftest import daemon_aside

    declared.start()
    with daemon_aside(tmp_path_factory.mktemp("other")) as other:
        done = other.command("run", "--config", str(declared.config), check=False)
        assert done.returncode == 1
        assert f"{declared.ram_disk} is another daemon's" in done.stderr
    files_become(declared, run(0, 0, 10))


def test_a_directory_that_is_not_there_starts_nothing(daemon, tmp_path):
    declared = Declared(daemon, tmp_path, tmp_path / "absent", "files", "file", LINES)
    done = daemon.command("run", "--config", str(declared.config), check=False)
    assert done.returncode == 1
    assert "absent cannot hold batches: No such file or directory. Make it, mount the RAM disk" in done.stderr


def test_an_orderly_restart_keeps_what_is_there(declared):
    declared.start()
    declared.at(2, 3)
    files_become(declared, run(2, 3, 13))
    inodes = {name: (declared.ram_disk / name).stat().st_ino for name in declared.files()}
    declared.daemon.command("stop")
    declared.start()
    stream = declared.when_ready(10)
    assert stream["produced_batches"] == 0
    assert {name: (declared.ram_disk / name).stat().st_ino for name in declared.files()} == inodes


def test_another_stream_in_the_directory_is_told_to_who_reads_on(declared):
    declared.start()
    batches = declared.directory()
    next(iter(batches))
    declared.daemon.command("stop")
    declared.declare(LINES.replace("length = 80", "length = 60"))
    declared.start()
    declared.when_ready(10)
    batches.load_state_dict({"epoch": 5, "step": 19})
    with pytest.raises(ProtocolError, match="has batches of another stream now"):
        next(iter(batches))


def test_an_undeclared_stream_leaves_nothing(declared):
    import signal

    declared.start()
    files_become(declared, run(0, 0, 10))
    declared.config.write_text("")
    os.kill(declared.daemon.pid, signal.SIGHUP)
    until(lambda: not list(declared.ram_disk.iterdir()), "the directory is empty")


def test_tensors_of_the_files_are_the_batch(declared):
    import safetensors.torch

    declared.start()
    files_become(declared, run(0, 0, 10))
    path = declared.ram_disk / file_name((0, 2))
    with safetensors.safe_open(path, "pt") as file:
        assert sorted(file.keys()) == ["image", "label"]
        assert file.get_tensor("label").tolist() == [8, 9, 10, 11]
        assert torch.equal(file.get_tensor("image")[1], torch.full((3, 6), 9.0))
        about = file.metadata()
    assert (about["stream"], about["epoch"], about["batch"]) == ("train", "0", "2")
    assert json.loads(about["values"]) == {"path": [f"image{index}.jpg" for index in range(8, 12)]}
