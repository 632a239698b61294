"""`prefetchd config check`: every mistake with its file, line, key, what it is and may be; else what is declared, and
whether it can be served here. With real directories and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import prefetchd
from prefetchd.wire.batch_file import LOCK_FILE
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import runtime_paths

ROOT = Path(prefetchd.__file__).parents[1]

DATA = """
import os, sys, time
import torch

class Rows:
    def __init__(self, length=100, width=1000):
        self.length, self.width = length, width
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return torch.full((self.width,), float(index))

def rows(length=100, width=1000):
    return Rows(length, width)

def texts():
    return ["x" * 1000] * 100

def waiting(pids):
    open(pids, "w").write(str(os.getpid()))
    time.sleep(600)

def failing():
    print("about to fail")
    raise LookupError("no such directory of images")

def exiting():
    print("about to leave")
    os._exit(7)

class Broken(Rows):
    def __getitem__(self, index):
        raise ValueError(f"sample {index} is damaged")

def broken():
    return Broken()

def number():
    return 7

class Flow(torch.utils.data.IterableDataset):
    def __init__(self, length):
        self.length = length
    def __iter__(self):
        return iter([torch.zeros(1000)] * self.length)

def flow(length=100):
    return Flow(length)

def doubled(samples):
    return torch.stack(samples * 2)

def note_place(place):
    open("init", "w").write(str(place))
"""


@pytest.fixture
def place(tmp_path):
    """A directory with the module `my_data`."""
    (tmp_path / "my_data.py").write_text(DATA)
    return tmp_path


def check(place, text, *options):
    """(exit code, output, errors); the file's name is FILE in them."""
    file = place / "streams.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "prefetchd", "config", "check", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout.replace(str(file), "FILE"), done.stderr.replace(str(file), "FILE")


def test_mistakes_are_told_line_by_line(tmp_path):
    code, output, errors = check(tmp_path, '[streams.train]\nbuffer = 2\nshuffle = "yes"\nepoch = 3\n')
    assert (code, output) == (1, "")
    for told in (
        "FILE:1: streams.train.dataset is nothing; allowed: ",
        "FILE:2: streams.train.buffer is 2; allowed: ",
        "FILE:3: streams.train.shuffle is 'yes'; allowed: ",
        "FILE:4: streams.train.epoch ",
    ):
        assert told in errors


def test_a_good_file_is_told_in_a_line_for_each_stream(place):
    store = place / "store"
    store.mkdir(mode=0o700)
    text = f"""
        [streams.imagenet]
        dataset = "my_data:rows"
        buffer = "1MB"
        low_watermark = 8
        high_watermark = 10
        store = {{files = "{store}"}}
        progress = {{file = "/tmp/progress.txt"}}

        [streams.other]
        dataset = "my_data:rows"
        buffer = 8
        """
    code, output, errors = check(place, textwrap.dedent(text))
    assert code == 0, errors
    lines = output.splitlines()
    assert lines[0].startswith(
        f"imagenet: my_data:rows, 976.6 KiB in files {store}, filled from 8 to 10 batches, progress from the file "
        "/tmp/progress.txt; room for "
    )
    assert lines[1].startswith("other: my_data:rows, 8 batches in shm, progress from the socket; room for 8 batches ")
    assert lines[2] == "FILE: good; it declares 2 streams"


def test_without_an_import_none_of_the_user_s_code_runs(place):
    text = '[streams.train]\ndataset = "no.such:module"\nbuffer = "1MB"\n'
    assert check(place, text, "--no-import") == (
        0,
        "train: no.such:module, 976.6 KiB in shm, progress from the socket\n"
        "FILE: good; it declares 1 stream; datasets were not looked at\n",
        "",
    )


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ('{files = "nowhere"}', "PLACE/nowhere is not there: mkdir -p PLACE/nowhere; mount -t tmpfs "),
        ('{ram_disk = "nowhere"}', "PLACE/nowhere is not there: mkdir -p PLACE/nowhere; mount -t tmpfs "),
        ('{ram_disk = "my_data.py"}', "PLACE/my_data.py is no directory"),
        ('{files = "everybodys"}', "PLACE/everybodys belongs to uid "),
    ],
)
def test_a_store_that_cannot_be_used_is_a_problem(place, store, told):
    (place / "everybodys").mkdir()
    (place / "everybodys").chmod(0o777)
    code, _, errors = check(
        place, f'[streams.train]\ndataset = "my_data:rows"\nbuffer = 8\nstore = {store}\n', "--no-import"
    )
    assert code == 1
    assert f"FILE:4: streams.train.store: {told}" in errors.replace(str(place), "PLACE")
    assert errors.endswith("Error: FILE: 1 problem; it declares 1 stream\n")


def test_a_directory_that_another_daemon_holds_is_a_problem(place, monkeypatch):
    store = place / "store"
    store.mkdir(mode=0o700)
    text = '[streams.train]\ndataset = "my_data:rows"\nbuffer = 8\nstore = {files = "store"}\n'
    held, own = LockFile(store / LOCK_FILE), LockFile(runtime_paths(place / "d.sock").lock)
    monkeypatch.setenv("PREFETCHD_SOCKET", str(place / "d.sock"))
    assert check(place, text, "--no-import")[0] == 0
    assert held.acquire()
    try:
        code, _, errors = check(place, text, "--no-import")
        assert code == 1
        assert f"FILE:4: streams.train.store: {store} is another daemon's (pid {os.getpid()}): choose" in errors
        # The daemon on our own socket is the one that will serve the file.
        assert own.acquire()
        assert check(place, text, "--no-import")[0] == 0
    finally:
        held.release()
        own.release()
    assert check(place, text, "--no-import")[0] == 0


def test_a_progress_file_s_directory_may_come_later_and_is_noted(place):
    text = '[streams.train]\ndataset = "my_data:rows"\nprogress = {file = "run/progress.txt"}\n'
    code, _, errors = check(place, text, "--no-import")
    assert code == 0
    assert errors.startswith(f"note: FILE:3: streams.train.progress: {place / 'run'} is not there: until it is, ")
    (place / "run").mkdir()
    assert check(place, text, "--no-import")[2] == ""


@pytest.mark.parametrize("key", ["python", "cwd"])
def test_an_interpreter_or_directory_that_is_not_there_is_a_problem(place, key):
    code, _, errors = check(place, f'[streams.train]\ndataset = "my_data:rows"\n{key} = "/no/such/place"\n')
    assert code == 1
    assert f"FILE:3: streams.train.{key}: /no/such/place is no " in errors


def test_a_store_on_a_disk_is_worth_a_note(place):
    if "tmpfs" in subprocess.run(["stat", "-f", "-c", "%T", place], capture_output=True, text=True).stdout:
        pytest.skip("the temporary directory is in memory")
    (place / "disk").mkdir(mode=0o700)
    text = '[streams.train]\ndataset = "my_data:rows"\nbuffer = 8\nstore = {ram_disk = "disk"}\n'
    code, _, errors = check(place, text, "--no-import")
    assert code == 0
    assert errors.startswith(f"note: FILE:4: streams.train.store: {place / 'disk'} is on ")


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ("no_such_module:rows", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("my_data:no_such_name", "AttributeError: module 'my_data' has no attribute 'no_such_name'"),
        ("my_data:failing", "making the dataset: LookupError: no such directory of images"),
        ("my_data:exiting", "making the dataset: its process has ended (exit code 7)\n    about to leave"),
        ("my_data:broken", "making its first batch: ValueError: sample 0 is damaged"),
        ("my_data:number", "my_data:number made a int; allowed: a dataset with __len__ and __getitem__"),
    ],
)
def test_a_dataset_that_cannot_be_made_is_a_problem(place, dataset, told):
    code, _, errors = check(place, f'[streams.train]\nbatch_size = 4\ndataset = "{dataset}"\nbuffer = 8\n')
    assert code == 1
    assert "FILE:3: streams.train.dataset: making " in errors
    assert told in errors


def test_an_interpreter_without_prefetchd_is_a_problem(place):
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    python.chmod(0o700)
    text = '[streams.train]\ndataset = "my_data:rows"\npython = "python"\n'
    code, _, errors = check(place, text)
    assert code == 1
    assert "FILE:2: streams.train.dataset: starting its interpreter: its process has ended (exit code 1)" in errors
    assert "    ModuleNotFoundError: No module named 'prefetchd_client'" in errors


def test_it_is_the_stream_s_own_interpreter_directory_and_variables(place):
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "other_data.py").write_text(
        "import os, sys\n"
        "open('ran', 'w').write(f'{sys.argv[0]} {os.environ[\"MODE\"]} {os.environ[\"THROUGH\"]}')\n"
        "def rows(): return [float(index) for index in range(100)]\n"
    )
    python = place / "python"
    python.write_text(f'#!/bin/sh\nTHROUGH=it exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    text = (
        '[streams.train]\ndataset = "other_data:rows"\npython = "python"\ncwd = "elsewhere"\nenv = {MODE = "train"}\n'
        "buffer = 8\n"
    )
    code, output, errors = check(place, text)
    assert code == 0, errors
    assert "; room for 8 batches of " in output
    assert (place / "elsewhere" / "ran").read_text() == "-c train it"


def test_watermarks_beyond_the_room_are_problems_with_the_batch_s_size(place):
    text = """
        [streams.train]
        dataset = "my_data:rows"
        dataset_args = {width = 250000}
        batch_size = 8
        buffer = "450MB"
        low_watermark = 800
        high_watermark = 1000
        """
    code, _, errors = check(place, textwrap.dedent(text))
    assert code == 1
    for line, key, value in ((7, "low", 800), (8, "high", 1000)):
        told = f"FILE:{line}: streams.train.{key}_watermark: {value}; allowed: up to 56, as there is room for so many "
        assert told + "batches of 7.6 MiB" in errors


def test_a_buffer_that_holds_too_few_batches_is_a_problem(place):
    text = '[streams.train]\ndataset = "my_data:rows"\nbatch_size = 8\nbuffer = "64KiB"\n'
    code, _, errors = check(place, text)
    assert code == 1
    assert "FILE:4: streams.train.buffer: buffer=64.0 KiB holds 0 batches of " in errors


def test_all_problems_of_all_streams_are_told(place):
    text = """
        [streams.first]
        dataset = "my_data:failing"
        store = {files = "nowhere"}
        [streams.second]
        dataset = "no_such_module:rows"
        """
    code, _, errors = check(place, textwrap.dedent(text))
    assert code == 1
    assert "FILE:4: streams.first.store: " in errors
    assert "FILE:3: streams.first.dataset: " in errors
    assert "FILE:6: streams.second.dataset: " in errors
    assert errors.endswith("Error: FILE: 3 problems; it declares 2 streams\n")


def test_an_iterable_dataset_is_looked_at_as_well(place):
    text = '[streams.train]\nbatch_size = 8\nbuffer = 8\ndataset = "my_data:flow"\n'
    code, output, errors = check(place, text)
    assert code == 0, errors
    assert "; room for 8 batches of 31." in output
    code, _, errors = check(place, text + "dataset_args = {length = 0}\n")
    assert code == 1
    assert "FILE:4: streams.train.dataset: its epochs have no batch" in errors
    code, _, errors = check(place, text + "shuffle = true\n")
    assert code == 1
    assert "allowed for an IterableDataset: false" in errors


def test_its_functions_are_called_as_workers_call_them(place):
    text = (
        '[streams.train]\ndataset = "my_data:rows"\nbatch_size = 8\nbuffer = 8\n'
        'collate_fn = "my_data:doubled"\nworker_init_fn = "my_data:note_place"\n'
    )
    code, output, errors = check(place, text)
    assert code == 0, errors
    assert "; room for 8 batches of 62." in output, "the batch that collate_fn makes"
    assert (place / "init").read_text() == "0"


def test_the_daemon_s_memory_is_shared_by_its_streams(place):
    text = """
        [daemon]
        memory = "100MB"
        [streams.first]
        dataset = "no.such:module"
        buffer = "80MB"
        [streams.second]
        dataset = "no.such:module"
        buffer = "30MB"
        """
    code, _, errors = check(place, textwrap.dedent(text), "--no-import")
    assert code == 1
    assert errors.splitlines()[0] == (
        "FILE:9: streams.second.buffer: 28.6 MiB; allowed: up to 19.1 MiB, which [daemon] memory has left "
        "beside 'first'"
    )


@pytest.mark.slow
def test_a_dataset_that_takes_too_long_is_ended_and_what_is_waited_for_is_told(place):
    pids = place / "pids"
    text = f'[streams.train]\ndataset = "my_data:waiting"\ndataset_args = {{pids = "{pids}"}}\n'
    code, output, errors = check(place, text, "--timeout", "15")
    assert code == 3
    assert "stream 'train': " in errors.splitlines()[0]
    assert "FILE:2: streams.train.dataset: not made within 15 s (making the dataset): give it longer" in errors
    assert errors.endswith("FILE: 1 of 1 stream not known in time\n")
    assert "good" not in output
    assert not Path(f"/proc/{pids.read_text()}").exists()


def test_who_interrupts_it_leaves_no_process(place):
    pids = place / "pids"
    file = place / "streams.toml"
    file.write_text(f'[streams.train]\ndataset = "my_data:waiting"\ndataset_args = {{pids = "{pids}"}}\n')
    command = [sys.executable, "-m", "prefetchd", "config", "check", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        until_s = time.monotonic() + 60
        while not (pids.exists() and pids.read_text()):
            assert time.monotonic() < until_s
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert not Path(f"/proc/{pids.read_text()}").exists()
    assert not [name for name in os.listdir("/dev/shm") if str(process.pid) in name]
