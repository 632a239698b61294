"""Batch files that somebody else has put where a trainer reads, or a daemon keeps, its batches: none is read, and none
runs anything."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import typing

import pytest
import torch
from prefetchd_client import BatchDirectory, PrefetchLoader

from prefetchd.ring.batch_files import BatchFiles
from prefetchd.wire.batch_file import STREAM_FILE, describe_stream, encode_header, file_name, temporary_name
from prefetchd.wire.errors import CallerError, ProtocolError, UntrustedPathError
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.file_codec import FilePlace, encode_file
from tests.attacks.another_user import NOBODY, as_nobody, as_root
from tests.contract.declared_daemons import Declared
from tests.scenario.forked import forked, told_by
from tests.scenario.waiting import report_when, stopped, until

SPEC = StreamSpec("ab" * 16, 0, "sequential", 8, 4, name="train")
LINES = """
dataset = "tests.scenario.declared_datasets:labelled"
dataset_args = {length = 80}
batch_size = 4
buffer = 10
"""


class Pair(typing.NamedTuple):
    left: typing.Any
    right: typing.Any


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (os.fspath(self.path),)


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir(mode=0o700)
    describe(path)
    return path


def describe(path):
    (path / STREAM_FILE).write_bytes(describe_stream(SPEC, 2, 1 << 20, 1 << 16))
    (path / STREAM_FILE).chmod(0o600)


def put(path, batch, position=(0, 0)):
    encode_file(batch, SPEC, position).write(FilePlace(str(path / file_name(position)), str(path / STREAM_FILE)))


def put_metadata(path, **metadata):
    (path / file_name((0, 0))).write_bytes(encode_header([], {"prefetchd": "2", **metadata}))
    (path / file_name((0, 0))).chmod(0o600)


def first(path, **options):
    return next(iter(BatchDirectory(path, timeout=0.5, **options)))


def test_a_pickle_in_a_file_is_never_loaded(disk, tmp_path):
    for version in ("1", "2"):
        skeleton = base64.b64encode(pickle.dumps(Runs(tmp_path / "made"))).decode()
        put_metadata(disk, prefetchd=version, skeleton=skeleton)
        with pytest.raises(
            ProtocolError, match="format '1'; this prefetchd reads 2" if version == "1" else "structure"
        ):
            first(disk)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "structure",
    [
        {"object": ["posix", "system"], "call": ["mkdir MADE"]},
        {"object": ["builtins", "eval"], "new": ["1"]},
        {"object": ["tests.attacks.test_planted_batch_files", "Runs"], "new": [], "state": {"dict": []}},
        {"object": [["a"], 3]},
    ],
)
def test_a_file_names_no_class_that_was_not_allowed(disk, tmp_path, monkeypatch, structure):
    monkeypatch.chdir(tmp_path)
    put_metadata(disk, structure=json.dumps(structure))
    with pytest.raises((CallerError, ProtocolError), match=r"classes=|damaged"):
        first(disk)
    assert not (tmp_path / "MADE").exists()


@pytest.mark.parametrize(
    "structure",
    [
        "[" * 5000 + "]" * 5000,
        json.dumps({"dict": [[[], 1]]}),
        json.dumps({"tensor": "absent"}),
        json.dumps({"__init__": 1}),
        json.dumps({"tuple": 3}),
        json.dumps({}),
        json.dumps({"sparse": [1, 2, [3], True]}),
        json.dumps({"view": ["O", [1]]}),
        json.dumps({"scalar": ["O", "AAAAAAAAAAA="]}),
        json.dumps({"texts": ["<U100000000", [9], ["a"] * 9]}),
        "NaN[",
    ],
)
def test_a_structure_that_is_none_is_an_error(disk, structure):
    put_metadata(disk, structure=structure)
    with pytest.raises(ProtocolError):
        first(disk)


def test_tensors_that_lie_about_their_bytes_are_refused(disk):
    for code, shape, size in [("F32", (1 << 40,), 16), ("F32", (-1, -4), 16), ("I64", (3,), 16)]:
        header = encode_header([("batch", code, shape, size)], {"prefetchd": "2", "structure": '{"tensor":"batch"}'})
        (disk / file_name((0, 0))).write_bytes(header + b"\0" * 16)
        (disk / file_name((0, 0))).chmod(0o600)
        with pytest.raises(ProtocolError):
            first(disk)


def test_a_class_that_the_caller_allows_is_read(disk):
    put(disk, Pair(torch.ones(2), "x"))
    with pytest.raises(CallerError, match=r"Pair.*classes=\[\.\.\.\]"):
        first(disk)
    found = first(disk, classes=[Pair])
    assert type(found) is Pair
    assert found.right == "x"


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770, 0o720])
def test_a_directory_that_others_may_write_to_is_not_read(disk, mode):
    put(disk, torch.ones(2))
    assert first(disk).sum() == 2
    disk.chmod(mode)
    with pytest.raises(UntrustedPathError, match=f"with mode {mode:o}; allowed: a directory of uid {os.geteuid()}"):
        first(disk)


def test_a_directory_that_lies_where_others_may_write_is_not_read(disk, tmp_path):
    put(disk, torch.ones(2))
    tmp_path.chmod(0o777)
    with pytest.raises(UntrustedPathError, match="could put another directory in the place"):
        first(disk)


def test_a_directory_that_becomes_another_one_is_looked_at_anew(disk):
    put(disk, torch.ones(2))
    put(disk, torch.ones(2), (0, 1))
    batches = iter(BatchDirectory(disk, timeout=0.5))
    next(batches)
    disk.chmod(0o1777)
    with pytest.raises(UntrustedPathError):
        next(batches)


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_file_that_others_may_write_to_is_not_read(disk, mode):
    put(disk, torch.ones(2))
    (disk / file_name((0, 0))).chmod(mode)
    with pytest.raises(UntrustedPathError, match="a regular file of uid"):
        first(disk)


def test_a_link_in_the_place_of_a_file_is_not_followed(disk, tmp_path):
    put(disk, torch.ones(2))
    (disk / file_name((0, 0))).rename(tmp_path / "elsewhere")
    (disk / file_name((0, 0))).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProtocolError, match="symbolic links"):
        first(disk)


@as_root
def test_another_user_s_file_is_not_read(disk):
    put(disk, torch.ones(2))
    os.chown(disk / file_name((0, 0)), NOBODY, NOBODY)
    with pytest.raises(UntrustedPathError, match=f"a file of uid {NOBODY}"):
        first(disk)


@as_root
def test_what_another_user_plants_on_a_bare_ram_disk_is_not_read(shared_directory):
    def plant():
        describe(shared_directory)
        put(shared_directory, torch.zeros(2))
        return "planted"

    assert as_nobody(plant) == "planted"
    with pytest.raises(UntrustedPathError, match="with mode 1777"):
        first(shared_directory)


def test_a_daemon_keeps_no_batches_where_others_may_write(daemon, tmp_path, disk):
    disk.chmod(0o1777)
    (tmp_path / "streams.toml").write_text(f'[streams.train]\n{LINES}store = {{files = "{disk}"}}\n')
    done = daemon.command("run", "--detach", "--config", str(tmp_path / "streams.toml"), check=False)
    assert done.returncode != 0
    assert f"{disk} belongs to uid {os.geteuid()} with mode 1777" in done.stderr
    assert "mode=0700" in done.stderr


def test_a_file_that_could_not_appear_is_missing_whatever_lies_there(disk):
    """So it is made again: what somebody else has put in its place is never taken for it."""
    files = BatchFiles(str(disk))
    files.open()
    try:
        (disk / file_name((0, 0))).mkdir()
        (disk / temporary_name((0, 0), 0)).write_bytes(b"batch")
        with pytest.raises(OSError, match="directory"):
            files.appear((0, 0))
        assert files.sizes() == {}
        assert files.positions() == [(0, 0)]
    finally:
        files.close()


@as_root
def test_planted_files_are_not_taken_over_and_do_not_count(disk):
    put(disk, torch.ones(2))
    files = BatchFiles(str(disk))
    files.open()
    try:
        assert files.is_of((0, 0), SPEC.fingerprint)
        os.chown(disk / file_name((0, 0)), NOBODY, NOBODY)
        assert not files.is_of((0, 0), SPEC.fingerprint)
        assert files.sizes() == {}
        os.chown(disk / STREAM_FILE, NOBODY, NOBODY)
        assert files.described() is None
    finally:
        files.close()


@as_root
def test_an_attached_trainer_reads_no_planted_file(daemon, tmp_path, disk):
    """The daemon makes it again, and the trainer never sees the other."""
    declared = Declared(daemon, tmp_path, disk, "files", "file", LINES)
    declared.start()
    planted = disk / file_name((0, 1))
    until(planted.exists, "the batch is there")
    os.chown(planted, NOBODY, NOBODY)
    until(lambda: planted.exists() and planted.stat().st_uid == os.geteuid(), "it is made again")
    loader = PrefetchLoader.attach("train")
    try:
        batches = iter(loader)
        next(batches)
        # Else it would make them again before they are read.
        with stopped(daemon):
            for name in declared.files():
                (disk / name).chmod(0o666)
            with pytest.raises(UntrustedPathError, match="with mode 666"):
                list(itertools.islice(batches, 10))
    finally:
        loader.close()


def test_a_directory_that_is_opened_to_others_is_a_fault_that_status_tells(daemon, tmp_path, disk):
    declared = Declared(daemon, tmp_path, disk, "files", "file", LINES)
    declared.start()
    until(lambda: declared.files(), "batches are there")
    disk.chmod(0o1777)

    def told(report):
        return any("mode 1777" in str(stream) for stream in report.snapshot["streams"])

    report_when(daemon, told, "status tells")
    disk.chmod(0o700)


# --- files that somebody makes shorter ---


@pytest.mark.parametrize("kept", [0.0, 0.0001, 0.5, 0.999])
def test_a_file_that_was_cut_is_an_error_in_words(disk, kept):
    """In a child: else SIGBUS would end the run."""
    put(disk, torch.arange(100_000))
    path = disk / file_name((0, 0))
    os.truncate(path, int(kept * path.stat().st_size))

    def read():
        with pytest.raises(ProtocolError) as caught:
            first(disk)
        return caught.value

    assert told_by(forked(read))
