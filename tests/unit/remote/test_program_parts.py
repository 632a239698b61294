"""What a program is on a machine: the same everywhere, or it is said which part is another, or what is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys

import pytest

from prefetchd.processes.environment import read_environment
from prefetchd.remote import program_parts
from prefetchd.remote.program_parts import NoPartsError, describe_program
from prefetchd.wire.process_environment import current_environment
from tests.contract import programs
from tests.scenario.datasets import Numbers
from tests.unit.remote.programs import LeavesAProcess, SaysHalfALine, program_of


def parts_of(dataset, **options) -> dict[str, str]:
    fd = program_of(dataset, **options)
    try:
        return describe_program(fd, read_environment(fd))
    finally:
        os.close(fd)


def test_the_same_program_has_the_same_parts():
    first, second = (parts_of(Numbers(20), collate_fn=programs.as_lists) for _ in range(2))
    assert first == second
    assert {"dataset", "collate_fn", "worker_init_fn"} < set(first)
    assert all(type(name) is str and type(digest) is str and digest for name, digest in first.items())


def test_what_is_another_program_differs_in_the_part_that_is_another():
    former = parts_of(Numbers(20))
    assert differing(former, parts_of(Numbers(21))) == {"dataset"}
    assert differing(former, parts_of(Numbers(20), collate_fn=programs.as_lists)) == {"collate_fn"}
    assert differing(former, parts_of(Numbers(20), worker_init_fn=programs.init_speaks)) == {"worker_init_fn"}


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    assert set(one) == set(other)
    return {name for name in one if one[name] != other[name]}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes and imports a module of the user's, which exists in one directory alone."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, source: str):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return write


SOURCE = "class Here:\n    def __len__(self):\n        return {}\n"


def test_a_program_whose_module_is_missing_has_no_parts_and_the_module_is_named(module, tmp_path):
    dataset = module("prefetchd_left_behind", SOURCE.format(8)).Here()
    here = current_environment()
    there = dataclasses.replace(here, sys_path=tuple(each for each in here.sys_path if each != str(tmp_path)))
    with pytest.raises(NoPartsError, match="No module named 'prefetchd_left_behind'"):
        parts_of(dataset, environment=there)


def test_a_module_that_is_another_one_here_is_another_part(module):
    fd = program_of(module("prefetchd_edited", SOURCE.format(8)).Here())
    try:
        former = describe_program(fd, read_environment(fd))
        module("prefetchd_edited", SOURCE.format(9))
        assert differing(former, describe_program(fd, read_environment(fd))) == {"dataset"}
    finally:
        os.close(fd)


def test_what_cannot_be_loaded_says_why_in_its_last_line():
    with pytest.raises(NoPartsError, match="the index is not there: gone"):
        parts_of(programs.Unloadable("gone"))


def test_a_program_that_ends_its_process_has_no_parts():
    with pytest.raises(NoPartsError, match="nothing to train on"):
        parts_of(programs.Unloadable("exit"))


def test_what_user_code_prints_meanwhile_is_no_part(module):
    source = f"print('imported')\nprint('{{}}')\n{SOURCE.format(8)}"
    found = parts_of(module("prefetchd_talkative", source).Here())
    assert "dataset" in found


def test_what_user_code_prints_without_an_end_of_line_does_not_hide_the_answer():
    """A progress bar that is not done, or a prompt."""
    assert "dataset" in parts_of(SaysHalfALine())


def test_a_program_that_takes_too_long_has_no_parts(monkeypatch):
    """Whoever asks is ready for NoPartsError and OSError."""
    monkeypatch.setattr(program_parts, "DEADLINE_S", 1.0)
    with pytest.raises(NoPartsError):
        parts_of(programs.Unloadable("wait"))


def test_what_user_code_has_started_is_not_waited_for(monkeypatch, tmp_path):
    """It has the pipe, too, from which the answer is read."""
    monkeypatch.setattr(program_parts, "DEADLINE_S", 8.0)
    noted = tmp_path / "pid"
    try:
        assert "dataset" in parts_of(LeavesAProcess(noted))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(noted.read_text()), signal.SIGKILL)


def test_an_interpreter_that_is_not_there_is_an_os_error():
    with pytest.raises(FileNotFoundError):
        parts_of(Numbers(20), environment=dataclasses.replace(current_environment(), executable=b"/no/such/python"))
