"""The user's code finds its trainer's environment in a worker, less what belongs to the trainer or daemon alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.processes.environment import (
    DENIED,
    THREADS,
    digest_at_start,
    enter,
    variables_at_start,
    variables_for_workers,
)
from prefetchd.wire.program_layout import Environment, encode_environment
from tests.budgets import tries

pytestmark = pytest.mark.executed


def environment(**changes: object) -> Environment:
    known = {"executable": b"/bin/python", "sys_path": ("/a", "/b"), "directory": b"/", "variables": {}}
    return Environment(**(known | changes))


names = st.binary(min_size=1, max_size=12).filter(lambda name: b"=" not in name and b"\0" not in name)


@given(st.dictionaries(names | st.sampled_from([*DENIED, *THREADS]), st.binary(max_size=5)))
@tries(100)
def test_the_trainers_variables_come_along_but_for_those_that_are_set_here(variables):
    found = variables_for_workers(environment(variables=variables))
    assert not set(found) & set(DENIED)
    own = {b"CUDA_VISIBLE_DEVICES": b"", **dict.fromkeys(THREADS, b"1")}
    assert own.items() <= found.items()
    kept = {name: value for name, value in variables.items() if name not in own and name not in DENIED}
    assert kept.items() <= found.items()
    assert set(found) - set(kept) - set(own) <= {b"PYTHONHASHSEED"}


@pytest.mark.parametrize(("told", "used"), [(None, b"0"), (b"17", b"17"), (b"random", b"0"), (b"", b"0")])
def test_strings_hash_alike_in_every_run(told, used):
    """The order of a set of strings may decide what a sample is."""
    variables = {} if told is None else {b"PYTHONHASHSEED": told}
    assert variables_for_workers(environment(variables=variables))[b"PYTHONHASHSEED"] == used


def test_what_an_interpreter_reads_when_it_starts_is_there_when_it_starts():
    variables = {
        b"LD_PRELOAD": b"x.so",
        b"PYTHONPATH": b"/p",
        b"OMP_NUM_THREADS": b"8",
        b"RANK": b"3",
        b"MY_DATA": b"/d",
    }
    found = variables_at_start(environment(variables=variables))
    assert found[b"LD_PRELOAD"] == b"x.so"
    assert found[b"PYTHONPATH"] == b"/p"
    assert found[b"OMP_NUM_THREADS"] == b"1"
    assert found[b"CUDA_VISIBLE_DEVICES"] == b""
    assert not {b"RANK", b"MY_DATA"} & set(found)


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"directory": b"/home"}, True),
        ({"variables": {b"RANK": b"1", b"LOCAL_RANK": b"1", b"MY_DATA": b"/d"}}, True),
        ({"variables": {b"OMP_NUM_THREADS": b"8", b"CUDA_VISIBLE_DEVICES": b"1"}}, True),
        ({"variables": {b"NOTIFY_SOCKET": b"x"}}, True),
        ({"variables": {b"TORCHELASTIC_ERROR_FILE": b"/tmp/3", b"TORCHELASTIC_RESTART_COUNT": b"2"}}, True),
        ({"variables": {b"TORCH_LOGS": b"all"}}, False),
        ({"variables": {b"LD_LIBRARY_PATH": b"/opt"}}, False),
        ({"variables": {b"PYTHONHASHSEED": b"5"}}, False),
        ({"executable": b"/other/python"}, False),
        ({"sys_path": ("/b", "/a")}, False),
        ({"preload": ("torch",)}, True),
        ({"authkey": b"of another process"}, True),
    ],
    ids=str,
)
def test_trainers_share_a_zygote_when_it_would_be_started_alike(change, shared):
    assert (digest_at_start(environment(**change)) == digest_at_start(environment())) is shared


def test_values_are_not_shown():
    assert "secret" not in repr(environment(variables={b"TOKEN": b"secret"}))


SCRIPT = """
import json, os, sys
from prefetchd.wire.program_layout import decode_environment
from prefetchd.processes.environment import enter
enter(decode_environment(bytes.fromhex(sys.argv[1])))
print(json.dumps([os.getcwd(), sys.path, sorted(os.environ.items())]))
"""


def test_entering_makes_a_process_that_place(tmp_path):
    variables = {b"KNOB": b"\xff", b"NOTIFY_SOCKET": b"x"}
    there = environment(directory=os.fsencode(tmp_path), variables=variables)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, encode_environment(there).hex()],
        env=dict(os.environ, LEFT_OVER="1", PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        check=True,
        timeout=60,
    )
    directory, path, found = json.loads(done.stdout)
    assert directory == str(tmp_path)
    assert path == ["/a", "/b"]
    expected = {os.fsdecode(name): os.fsdecode(value) for name, value in variables_for_workers(there).items()}
    assert dict(found) == expected
    assert found[0][1] == ""


def test_a_directory_that_is_gone_is_an_error(tmp_path):
    """Its zygote says so and ends; the daemon's own directory would be a wrong guess."""
    before = list(sys.path), dict(os.environb), os.getcwd()
    try:
        with pytest.raises(FileNotFoundError):
            enter(environment(directory=os.fsencode(tmp_path / "gone")))
    finally:
        sys.path[:] = before[0]
        os.environb.clear()
        os.environb.update(before[1])
        os.chdir(before[2])
