"""What multiprocessing shares, in a program's pickle."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import get_spawning_popen

import pytest
from prefetchd_client.program.program_pickle import pickle_program

from prefetchd.wire.errors import UnpicklableError


@pytest.fixture(autouse=True)
def untracked() -> Iterator[None]:
    """multiprocessing's own process, which would live as long as this one."""
    yield
    gc.collect()
    resource_tracker._resource_tracker._stop()


def test_what_multiprocessing_shares_is_handed_on_while_this_process_lives():
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    shared = {"value": context.Value("i", 3), "lock": context.Lock(), "sender": sender}
    pickled, buffers = pickle_program({"dataset": shared}, shares=True)
    found = pickle.loads(pickled, buffers=buffers)["dataset"]
    found["value"].value += 1
    assert shared["value"].value == 4
    with found["lock"]:
        assert not shared["lock"].acquire(block=False)
    found["sender"].send("hello")
    assert receiver.recv() == "hello"
    for each in (receiver, sender, found["sender"]):
        each.close()
    assert get_spawning_popen() is None


def test_another_file_under_its_number_is_not_taken_for_it():
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    pickled, _ = pickle_program({"dataset": sender}, shares=True)
    receiver.close()
    other = os.pipe()
    os.dup2(other[1], sender.fileno())
    with pytest.raises(FileNotFoundError, match="another file is open"):
        pickle.loads(pickled)
    sender.close()
    for fd in other:
        os.close(fd)


def test_a_socket_is_not():
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=True)
    with receiver, sender, pytest.raises(UnpicklableError, match=r"^dataset\[0\] cannot .*a socket"):
        pickle_program({"dataset": [sender]}, shares=True)


@pytest.mark.parametrize("shares", [True, False])
def test_what_was_made_for_forks_is_not(shares):
    lock = multiprocessing.get_context("fork").Lock()
    with pytest.raises(UnpicklableError, match=r"^dataset\[0\]"):
        pickle_program({"dataset": [lock]}, shares=shares)


def test_nothing_is_shared_with_who_outlives_this_process():
    with pytest.raises(UnpicklableError, match=r"^dataset\[0\]"):
        pickle_program({"dataset": [multiprocessing.get_context("spawn").Lock()]})
