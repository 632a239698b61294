"""What a stream owns in the world: of two programs the first stays, and nothing is left of the second."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import posix_ipc
import pytest
from prefetchd_client.program import program_pickle
from prefetchd_client.program.program_pickle import write_program

from prefetchd.daemon.engine.commands import CreateRing
from prefetchd.daemon.segments import resources
from prefetchd.daemon.segments.resources import StreamResources
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Program
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.runtime_paths import SHARED_MEMORY, runtime_paths
from prefetchd.wire.stream_spec import StreamSpec

STREAM = SimpleNamespace(number=1, spec=StreamSpec("0" * 32, 0, "sequential", 13, 3))


@pytest.fixture
def rings(tmp_path):
    found = StreamRings(None, None, runtime_paths(tmp_path / "s"), generation=1, memory_bytes=None, is_burying=bool)
    yield found
    found.drop(STREAM.number)
    assert not segments(tmp_path)


def segments(tmp_path) -> set[str]:
    prefix = runtime_paths(tmp_path / "s").segment_name("program", "")[1:]
    return {each.name for each in Path(SHARED_MEMORY).iterdir() if each.name.startswith(prefix)}


def program(tmp_path, pickled: bytes) -> tuple[Program, int]:
    name, fd, program_bytes = write_program(runtime_paths(tmp_path / "s"), current_environment(), pickled, [])
    return Program(name, program_bytes), fd


def test_the_first_program_stays_and_the_second_goes(rings, tmp_path):
    first, second = program(tmp_path, b"first"), program(tmp_path, b"second")
    rings.take_program(STREAM, *first)
    rings.take_program(STREAM, *second)
    assert segments(tmp_path) == {first[0].name[1:]}
    assert rings.resources[STREAM.number].program_name == first[0].name
    for _, fd in (first, second):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_second_program_is_looked_at_like_a_first(rings, tmp_path):
    rings.take_program(STREAM, *program(tmp_path, b"first"))
    other, fd = program(tmp_path, b"second")
    with pytest.raises(ProtocolError, match="allowed"):
        rings.take_program(STREAM, Program("/etc/passwd", 1), fd)
    assert other.name[1:] not in segments(tmp_path)


@pytest.mark.parametrize("has_name", [False, True], ids=["unnamed", "named"])
def test_a_program_has_its_name_once_it_is_taken(rings, tmp_path, monkeypatch, has_name):
    if has_name:
        monkeypatch.setattr(program_pickle, "_new_segment", made_with_a_name)
    message, fd = program(tmp_path, b"pickled")
    assert segments(tmp_path) == ({message.name[1:]} if has_name else set())
    rings.take_program(STREAM, message, fd)
    assert segments(tmp_path) == {message.name[1:]}
    found = os.stat(SHARED_MEMORY + message.name)
    assert (found.st_size, found.st_nlink, found.st_mode & 0o777) == (message.program_bytes, 1, 0o600)


def made_with_a_name(name: str) -> tuple[int, bool]:
    return posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0).fd, True


def test_a_program_whose_name_is_taken_is_refused_and_the_owner_of_the_name_stays(rings, tmp_path):
    message, fd = program(tmp_path, b"pickled")
    owner = posix_ipc.SharedMemory(message.name, posix_ipc.O_CREX, mode=0o600, size=8)
    try:
        with pytest.raises(ProtocolError, match="File exists"):
            rings.take_program(STREAM, message, fd)
        assert os.fstat(owner.fd).st_nlink == 1
    finally:
        owner.close_fd()
        owner.unlink()


def test_a_file_of_another_file_system_is_no_program(rings, tmp_path):
    message, fd = program(tmp_path, b"pickled")
    os.close(fd)
    with pytest.raises(ProtocolError, match="cannot be opened"):
        rings.take_program(STREAM, message, os.memfd_create("program"))
    assert segments(tmp_path) == set()


def test_a_ring_whose_name_is_taken_is_made_under_another(tmp_path, monkeypatch):
    """Names are random: here the first two are another's."""
    paths, engine, tokens = runtime_paths(tmp_path / "s"), Mock(), iter(["taken", "taken", "free"])
    monkeypatch.setattr(resources, "random_token", lambda: next(tokens))
    rings = StreamRings(Mock(), engine, paths, generation=1, memory_bytes=None, is_burying=bool)
    rings.resources[STREAM.number] = StreamResources(STREAM.spec)
    taken = posix_ipc.SharedMemory(paths.segment_name("ring", "taken"), posix_ipc.O_CREX, mode=0o600, size=8)
    try:
        rings.create(CreateRing(STREAM.number, 4096, 4096, b""))
        engine.ring_failed.assert_not_called()
        engine.ring_created.assert_called_once()
        assert rings.ring(STREAM.number).name == paths.segment_name("ring", "free")
        assert os.fstat(taken.fd).st_size == 8, "the other's stays as it was"
    finally:
        taken.close_fd()
        taken.unlink()
        rings.drop(STREAM.number)
    assert not list(Path(SHARED_MEMORY).glob(paths.segment_name("ring", "*")[1:]))
