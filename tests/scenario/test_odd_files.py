"""What else may lie in a directory of batches under a batch's name: pipes, directories, files that are mostly holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prefetchd_client import BatchDirectory

from prefetchd.wire.batch_file import STREAM_FILE, error_name, file_name
from prefetchd.wire.errors import ProtocolError, UntrustedPathError
from tests.contract.declared_daemons import Declared, ram_disk
from tests.scenario.test_batches_as_files import LINES, files_become, run
from tests.scenario.waiting import until

SPARSE_BYTES = 6 << 30
MOST_BYTES = 512 << 20


@pytest.fixture
def disk():
    with ram_disk() as found:
        yield found


@pytest.fixture
def declared(daemon, tmp_path, disk):
    found = Declared(daemon, tmp_path, disk, "files", "file", LINES)
    yield found
    for path in disk.iterdir():
        if path.is_dir():
            path.rmdir()
    daemon.stop_and_check()


def most_memory_bytes(pid: int) -> int:
    """What it ever had at once."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) << 10


def test_a_pipe_a_directory_and_a_file_of_holes_keep_no_daemon_from_starting(declared):
    declared.start()
    files_become(declared, run(0, 0, 10))
    declared.kill()
    at = [declared.ram_disk / file_name((0, step)) for step in range(4)]
    os.truncate(at[1], SPARSE_BYTES)
    for path in (at[2], at[3]):
        path.unlink()
    os.mkfifo(at[2])
    os.mkfifo(declared.ram_disk / error_name((0, 7)))
    at[3].mkdir()
    declared.start()
    pid = declared.daemon.pid
    until(lambda: "is a directory where a batch belongs" in declared.when()["store_fault"], "status tells of it")
    at[3].rmdir()
    files_become(declared, run(0, 0, 10))
    declared.when(lambda stream: not stream["store_fault"], "all is well again")
    assert at[1].stat().st_size < SPARSE_BYTES
    assert all(path.is_file() for path in at)
    assert declared.daemon.pid == pid
    assert most_memory_bytes(pid) < MOST_BYTES


@pytest.mark.parametrize("name", [STREAM_FILE, file_name((0, 3))], ids=["description", "batch"])
def test_a_pipe_that_comes_while_it_runs_is_replaced(declared, name):
    declared.start()
    files_become(declared, run(0, 0, 10))
    path = declared.ram_disk / name
    path.unlink()
    os.mkfifo(path)
    if name == STREAM_FILE:
        declared.at(0, 5)
        files_become(declared, run(0, 5, 15), "it goes on")
        path.unlink()
    until(path.is_file, "the file is there again")


@pytest.mark.parametrize(
    ("kind", "error", "why"),
    [
        ("pipe", UntrustedPathError, "allowed: a regular file"),
        ("directory", UntrustedPathError, "allowed: a regular file"),
        ("symbolic link", ProtocolError, "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_a_reader_says_what_it_cannot_read(tmp_path, kind, error, why):
    (tmp_path / STREAM_FILE).write_text('{"format": 2, "fingerprint": "", "stream": "s", "batches_an_epoch": 3}')
    path = tmp_path / file_name((0, 0))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / STREAM_FILE)
    with pytest.raises(error, match=why):
        next(iter(BatchDirectory(tmp_path)))


def test_a_reader_says_that_the_description_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / STREAM_FILE)
    with pytest.raises(UntrustedPathError, match=f"{STREAM_FILE} is no regular file.*; allowed: a regular file"):
        next(iter(BatchDirectory(tmp_path)))
