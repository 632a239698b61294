"""What a child prints is read a part at a time: so much a turn, so much a second, and the rest is counted."""

from __future__ import annotations

import os

import pytest

from prefetchd.supervisor import child_output
from prefetchd.supervisor.child_output import CHUNK_BYTES, LINES_A_SECOND, READ_BYTES_A_SECOND, ChildOutput
from tests.unit.supervisor.test_child_process import Readable


class Printing:
    """A pipe that is kept full, read by hand at a time of the test's."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.left_out = 0
        self.watcher = Readable()
        self.fd, self.into = os.pipe()
        os.set_blocking(self.into, False)
        self.output = ChildOutput(self.watcher, self.fd, self._told)

    def _told(self, lines: list[str], left_out: int) -> None:
        self.lines += lines
        self.left_out += left_out

    @property
    def is_watched(self) -> bool:
        return self.fd in self.watcher.callbacks

    def turn(self, printed: bytes = b"") -> int:
        """Prints as much of it as the pipe takes, and has the loop come round; what was printed, in bytes."""
        wrote = os.write(self.into, printed) if printed else 0
        self.watcher.callbacks[self.fd]()
        return wrote

    def close(self) -> None:
        self.output.close()
        os.close(self.into)


@pytest.fixture
def printing():
    made = Printing()
    yield made
    made.close()


def test_a_turn_reads_one_chunk_however_much_there_is(printing):
    printing.turn(b"\n" * CHUNK_BYTES)
    assert len(printing.lines) + printing.left_out == CHUNK_BYTES
    os.write(printing.into, b"x" * 10 + b"\n")
    assert len(printing.lines) == LINES_A_SECOND
    printing.turn()
    assert printing.left_out == CHUNK_BYTES - LINES_A_SECOND + 1


def test_what_a_second_has_no_room_for_is_counted_and_the_next_second_has_room_again(printing):
    printed = 0
    for number in range(LINES_A_SECOND + 500):
        line = b"line %d\n" % number
        printed += printing.turn(line) > 0
    assert (len(printing.lines), printing.left_out) == (LINES_A_SECOND, 500)
    printing.turn(b"half of one that is left out")
    printing.watcher.time_s = 1.0
    printing.turn(b", and its other half\nwhole\n")
    assert printing.lines[LINES_A_SECOND:] == ["whole"]
    assert printing.left_out == 501


def test_one_that_goes_on_is_left_alone_until_the_second_is_over(printing):
    turns = 0
    while printing.is_watched:
        turns += 1
        printing.turn(b"y" * 1023 + b"\n")
        assert turns * 1024 <= READ_BYTES_A_SECOND, "it is read without end"
    ((delay_s, go_on),) = printing.watcher.later
    assert delay_s == 1.0
    printing.watcher.time_s = 1.0
    go_on()
    printing.turn(b"again\n")
    assert printing.lines[-1] == "again"


def test_one_that_was_closed_while_it_was_left_alone_is_not_read_again(printing):
    while printing.is_watched:
        printing.turn(b"y" * 65535 + b"\n")
    printing.output.close()
    printing.watcher.later[0][1]()
    assert not printing.is_watched


def test_last_words_end_though_somebody_goes_on_printing(printing, monkeypatch):
    real_read, reads = os.read, []

    def read_and_refill(fd: int, size: int) -> bytes:
        found = real_read(fd, size)
        reads.append(len(found))
        os.write(printing.into, b"z" * 1000 + b"\n")
        return found

    os.write(printing.into, b"first\n")
    monkeypatch.setattr(child_output.os, "read", read_and_refill)
    printing.output.last_words()
    assert printing.lines[0] == "first"
    assert sum(reads) < 2 * child_output.LAST_WORDS_BYTES
