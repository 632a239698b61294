"""A wait in words: the engine's cause, and what the look at a process adds."""

from __future__ import annotations

import logging
import time

import pytest

from prefetchd.daemon.engine.commands import NOBODY, ZYGOTE, ReportStall
from prefetchd.daemon.shell.stall_reports import STACKS_LOGGED_CHARACTERS, TEXT_LIMIT_CHARACTERS, StallReports
from prefetchd.supervisor.backend import Look
from prefetchd.wire.framing import encode
from prefetchd.wire.worker_status import COLLATING, IDLE, IMPORTING, LOADING, NO_WORKER_STATUS, STARTING, WorkerStatus

STACKS = 'Current thread 0x1 (most recent call first):\n  File "/u/data.py", line 12 in fetch\n'


class Setting:
    """A StallReports whose backend only writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.sent: list[tuple[int, object]] = []
        self.notes: dict[int, WorkerStatus] = {}
        self.names = StallReports(self, str, lambda session, message: self.sent.append((session, message)))

    def look_at(self, stream: int, worker: int) -> None:
        self.asked.append((stream, worker))

    def note(self, worker: int) -> WorkerStatus:
        return self.notes.get(worker, NO_WORKER_STATUS)

    def text(self, look: Look, note: WorkerStatus = NO_WORKER_STATUS, **wait) -> str:
        wait = {"cause": "", "knob": "turn it", "suspect": 3, "at": (0, 9), **wait}
        self.notes[3] = note
        self.names.name(ReportStall(1, 2, 7, (0, 8), 61.0, **wait))
        self.names.looked(7, wait["suspect"], look)
        ((session, message),) = self.sent
        assert (session, message.cursor, message.epoch, message.step) == (1, 2, 0, 8)
        assert encode(message)
        return message.text


@pytest.fixture
def setting():
    return Setting()


def ago(seconds: float, **note) -> WorkerStatus:
    return WorkerStatus(1, since_ns=time.monotonic_ns() - int(seconds * 1e9), **note)


def test_a_wait_for_nobody_is_told_at_once(setting):
    setting.names.name(ReportStall(1, 2, 7, (0, 8), 61.0, "the ring is full", "raise buffer=", NOBODY))
    assert setting.asked == []
    assert setting.sent[0][1].text == "the ring is full\n  raise buffer="


def test_a_worker_at_a_sample_is_told_with_its_stack(setting):
    note = ago(59.4, phase=LOADING, row=2, index=17)
    assert setting.text(Look(99, "S", STACKS), note) == (
        "worker 3 (pid 99) has been at dataset[17], epoch 0, step 9 for 59 s:\n"
        "    /u/data.py:12 in fetch\n"
        "  turn it; `prefetchd logs` has the whole stack"
    )


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ({"phase": COLLATING}, "has been at collate_fn, epoch 0, step 9 for 5 s"),
        ({"phase": LOADING}, "has been at dataset.__getitems__, epoch 0, step 9 for 5 s"),
        ({"phase": IDLE}, "is between two tasks, for 5 s"),
        ({"phase": STARTING}, "is starting, for 5 s"),
        ({"phase": IMPORTING}, "has been importing for 5 s"),
    ],
)
def test_what_else_a_worker_may_be_at(setting, note, told):
    assert f"worker 3 (pid 99) {told}:" in setting.text(Look(99, "S", STACKS), ago(5.4, **note))


@pytest.mark.parametrize(
    ("look", "told"),
    [
        (Look(99, "T"), "It is stopped (state T): `kill -CONT 99` lets it go on"),
        (Look(99, "D"), "It waits in the kernel (state D), for a disk or a network file system"),
        (Look(99, "R"), "It does not show its stack"),
        (Look(), "It has no process by now"),
    ],
)
def test_what_shows_no_stack_says_why(setting, look, told):
    text = setting.text(look, ago(5, phase=LOADING, row=1, index=1))
    assert told in text
    assert "prefetchd logs" not in text


def test_a_zygote_is_told_by_the_engine_s_words(setting):
    text = setting.text(Look(99, "S", STACKS), cause="its zygote loads, for 61 s", suspect=ZYGOTE)
    assert text.splitlines()[:2] == ["its zygote loads, for 61 s:", "    /u/data.py:12 in fetch"]


def test_two_who_wait_for_one_have_it_looked_at_once(setting):
    for session in (1, 4):
        setting.names.name(ReportStall(session, 2, 7, (0, 8), 61.0, "", "", 3))
    assert setting.asked == [(7, 3)]
    setting.names.looked(7, 3, Look(99, "S", STACKS))
    assert [session for session, _ in setting.sent] == [1, 4]
    setting.names.name(ReportStall(1, 2, 7, (0, 8), 91.0, "", "", 3))
    assert len(setting.asked) == 2


def test_a_look_that_nobody_asked_for_is_ignored(setting):
    setting.names.looked(7, 3, Look(99, "S", STACKS))
    assert setting.sent == []


def test_the_log_has_it_all(setting, caplog):
    with caplog.at_level(logging.WARNING, "prefetchd"):
        setting.text(Look(99, "S", STACKS + "x" * 100_000), ago(5, phase=LOADING, row=1, index=1))
    (record,) = caplog.records
    assert record.getMessage() == "wait"
    assert record.fields["stream"] == "7"
    assert (record.fields["epoch"], record.fields["step"], record.fields["waited_s"]) == (0, 8, 61.0)
    assert len(record.fields["stacks"]) == STACKS_LOGGED_CHARACTERS
    assert "dataset[1]" in record.fields["cause"]


def test_a_very_long_text_fits_into_a_packet(setting):
    text = setting.text(Look(99, "S", STACKS.replace("/u/", "/ü" * 60_000)), cause="long " * 10_000)
    assert len(text) == TEXT_LIMIT_CHARACTERS
