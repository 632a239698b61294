"""The trainer's program with the environment of another machine: all but that is the same, bit for bit."""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys

import numpy as np
import pytest
import torch

from prefetchd.remote import node_environment
from prefetchd.remote.node_environment import environment_of, on_this_node, program_with
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.program_layout import (
    Environment,
    ProgramLayout,
    decode_program,
    encode_head,
    encode_table,
)
from prefetchd.workers.program import load_program
from tests.scenario.datasets import Made, equal
from tests.unit.remote.programs import program_of

TRAINERS = Environment(
    executable=b"/trainer/bin/python",
    sys_path=("/trainer/lib",),
    directory=b"/trainer/work",
    variables={b"MY_DATA": b"/d", b"PATH": b"/trainer/bin", b"PYTHONHASHSEED": b"17", b"RAY_ADDRESS": b"trainer:1"},
    preload=("torch",),
    authkey=b"of the trainer",
)


class Large(Made):
    """Holds what travels beside the pickle, of odd sizes."""

    def __init__(self) -> None:
        super().__init__(float, 8)
        self.tensor = torch.arange(100_003, dtype=torch.int16)
        self.array = np.arange(90_001, dtype=np.float64)


def mapped(fd: int) -> memoryview:
    """The program's bytes, as an actor has them. Closes the descriptor."""
    try:
        return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


def pickle_and_buffers(program: memoryview) -> list[bytes]:
    layout = decode_program(program)
    spans = [(layout.pickle_offset, layout.pickle_bytes), *zip(layout.buffer_offsets, layout.buffer_sizes)]
    return [bytes(program[begin : begin + size]) for begin, size in spans]


# --- programs ---


@pytest.mark.parametrize("dataset", [Made(float), Large()], ids=["without buffers", "with buffers"])
@pytest.mark.parametrize("variables", [0, 1, 2000])
def test_a_program_with_another_environment_is_the_same_program(dataset, variables):
    program = mapped(program_of(dataset))
    more = {f"NAME_{number}".encode(): b"v" * 50 for number in range(variables)}
    environment = dataclasses.replace(TRAINERS, variables=more)
    again = mapped(program_with(environment, program))
    assert environment_of(again) == environment
    assert pickle_and_buffers(again) == pickle_and_buffers(program)
    assert len(again) == decode_program(again).program_bytes


def test_buffers_of_no_bytes_stay():
    environment = current_environment()
    layout = ProgramLayout(0, 3, (0, 5, 0))
    program = bytearray(layout.program_bytes)
    places = [(0, encode_head(layout)), (layout.pickle_offset, b"abc"), (layout.table_offset, encode_table(layout))]
    for begin, part in [*places, (layout.buffer_offsets[1], b"12345")]:
        program[begin : begin + len(part)] = part
    again = mapped(program_with(environment, memoryview(program)))
    assert pickle_and_buffers(again) == [b"abc", b"", b"12345", b""]


def test_what_is_loaded_of_it_is_what_was_written():
    fd = program_with(TRAINERS, mapped(program_of(dataset := Large())))
    try:
        loaded = load_program(fd).dataset
    finally:
        os.close(fd)
    assert equal(loaded.tensor, dataset.tensor)
    assert equal(loaded.array, dataset.array)


def test_a_program_s_environment_is_the_one_that_it_was_written_with():
    assert environment_of(mapped(program_of(Made(float), environment=TRAINERS))) == TRAINERS


@pytest.mark.parametrize("damage", [lambda it: it[:100], lambda it: bytes(len(it)), lambda it: it[: len(it) // 2]])
def test_what_is_no_program_is_refused_and_leaves_no_descriptor(damage):
    broken = memoryview(damage(bytes(mapped(program_of(Large())))))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError):
        program_with(TRAINERS, broken)
    with pytest.raises(ProtocolError):
        environment_of(memoryview(damage(bytes(mapped(program_of(Large()))))))
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_written_leaves_no_descriptor(monkeypatch):
    program = mapped(program_of(Made(float)))
    before = len(os.listdir("/proc/self/fd"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node_environment.os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        program_with(TRAINERS, program)
    assert len(os.listdir("/proc/self/fd")) == before


# --- environments ---


def test_here_it_is_its_own_node():
    """What the trainer's machine makes of it is what its own workers have."""
    here = dataclasses.replace(current_environment(), authkey=b"")
    found = on_this_node(here)
    assert found.executable == here.executable
    assert found.directory == here.directory
    existing = [entry for entry in here.sys_path if os.path.exists(entry)]
    assert list(found.sys_path[: len(existing)]) == existing


def test_the_interpreter_is_the_node_s():
    assert on_this_node(TRAINERS).executable == os.fsencode(sys.executable)


def test_what_is_read_at_the_start_is_the_node_s_and_all_other_variables_are_the_trainer_s(monkeypatch):
    monkeypatch.setenv("MY_DATA", "/of the node")
    monkeypatch.setenv("ONLY_OF_THE_NODE", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/node/lib")
    found = on_this_node(TRAINERS).variables
    assert found[b"MY_DATA"] == b"/d"
    assert b"ONLY_OF_THE_NODE" not in found
    assert found[b"PATH"] == os.environb[b"PATH"]
    assert found[b"LD_LIBRARY_PATH"] == b"/node/lib"


@pytest.mark.parametrize("own", [None, "node:1"])
def test_the_trainer_s_ray_is_not_the_node_s(monkeypatch, own):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if own is not None:
        monkeypatch.setenv("RAY_ADDRESS", own)
    assert on_this_node(TRAINERS).variables.get(b"RAY_ADDRESS") == (own and own.encode())


def test_strings_hash_as_they_do_in_the_trainer_s_workers(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    assert on_this_node(TRAINERS).variables[b"PYTHONHASHSEED"] == b"17"
    untold = dataclasses.replace(TRAINERS, variables={})
    assert b"PYTHONHASHSEED" not in on_this_node(untold).variables


def test_of_the_trainer_s_path_what_is_there_comes_first(tmp_path, monkeypatch):
    one, two, own = (tmp_path / name for name in ("one", "two", "own"))
    for each in (one, two, own):
        each.mkdir()
    monkeypatch.setattr(sys, "path", ["", str(own), str(one)])
    trainers = dataclasses.replace(
        TRAINERS, sys_path=(str(two), "/trainer/lib", str(one)), directory=os.fsencode(tmp_path)
    )
    assert on_this_node(trainers).sys_path == (str(two), str(one), str(own))


def test_the_directory_is_the_trainer_s_where_it_is_there(tmp_path):
    trainers = dataclasses.replace(TRAINERS, directory=os.fsencode(tmp_path))
    found = on_this_node(trainers)
    assert found.directory == os.fsencode(tmp_path)
    assert str(tmp_path) not in found.sys_path


def test_else_it_is_this_process_s_and_modules_are_found_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = on_this_node(TRAINERS)
    assert found.directory == os.fsencode(tmp_path)
    assert found.sys_path[0] == str(tmp_path)


def test_the_trainer_s_manager_is_not_reached_from_a_node():
    assert on_this_node(TRAINERS).authkey == b""


def test_what_the_trainer_has_imported_is_imported_there_too():
    assert on_this_node(TRAINERS).preload == TRAINERS.preload
