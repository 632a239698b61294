"""Which files of a node are taken to be those of this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from prefetchd.remote import data_check
from prefetchd.remote.data_check import TIMES_DIFFER, DataCheck, Difference, digest_of
from prefetchd.workers.opened_files import files_in, pack_files, stamp_of

LONG_AGO_NS = time.time_ns() - 10**12


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "1.bin"
    found.write_bytes(b"data" * 100)
    os.utime(found, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return found


def read_there(path: Path, *, size: int = 400, changed_ns: int = LONG_AGO_NS) -> bytes:
    """What a node reports that has read the file."""
    return pack_files([(os.fsencode(path), (7, size, changed_ns))])


def test_equal_sizes_and_times_need_no_digest(file):
    found = DataCheck().compare(read_there(file))
    assert (found.difference, found.doubtful) == (None, ())
    # The daemon looks at them again as the epoch begins, on this machine.
    assert list(files_in(found.opened_here)) == [(os.fsencode(file), stamp_of(file))]


def test_another_size_is_a_difference(file):
    found = DataCheck().compare(read_there(file, size=399))
    assert found.difference == Difference(str(file), "its size: 400 bytes here, 399 bytes there")


def test_another_time_is_settled_by_one_digest(file):
    check, opened = DataCheck(), read_there(file, changed_ns=5)
    assert check.compare(opened).doubtful == (os.fsencode(file),)
    found = check.compare(opened, [digest_of(os.fsencode(file))])
    assert (found.difference, found.doubtful) == (None, ())
    assert check.compare(opened).doubtful == ()
    assert check.compare(read_there(file, changed_ns=6)).doubtful


def test_other_bytes_of_another_time_are_a_difference(file):
    found = DataCheck().compare(read_there(file, changed_ns=5), [12345])
    assert found.difference == Difference(str(file), TIMES_DIFFER)


def test_a_file_that_was_changed_here_just_now_is_recent(file):
    os.utime(file)
    found = DataCheck().compare(read_there(file, size=399))
    assert found.difference is not None
    assert found.difference.is_recent


def test_a_file_that_is_not_here_is_not_compared(file):
    check = DataCheck()
    found = check.compare(read_there(file.with_name("theirs")))
    assert (found.difference, found.doubtful, found.opened_here) == (None, (), b"")


def test_a_large_file_is_digested_in_parts_with_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(data_check, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(data_check, "BLOCK_BYTES", 10)
    path = tmp_path / "large"
    digests = set()
    for changed in (None, 0, 4999, 9999):
        content = bytearray(10_000)
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        digests.add(digest_of(os.fsencode(path)))
    # What lies between two parts is not seen.
    assert len(digests) in (3, 4)
    path.write_bytes(bytes(9_999) + b"\1")
    assert digest_of(os.fsencode(path)) in digests


def test_a_file_that_cannot_be_read_has_no_digest(tmp_path):
    assert digest_of(os.fsencode(tmp_path / "missing")) == 0
