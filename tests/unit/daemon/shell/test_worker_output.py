"""What workers print, kept down to a few lines a second."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from prefetchd.daemon.shell.worker_output import (
    OUTPUT_LINE_BYTES,
    OUTPUT_LINES_A_SECOND,
    OutputRate,
    WorkerOutput,
)
from prefetchd.wire.framing import MAX_PACKET_BYTES, encode
from prefetchd.wire.messages import Output


@pytest.mark.parametrize("line", ["x" * 100_000, "\ufffd" * 2000, "\U0001f682" * 5000, "\udc80" * 5000])
def test_a_second_s_output_fits_into_a_packet(line):
    kept, _ = OutputRate().admit(1, "\n".join([line] * 100))
    assert len(kept.split("\n")) == OUTPUT_LINES_A_SECOND
    assert len(kept.split("\n")[0].encode()) <= OUTPUT_LINE_BYTES
    assert len(encode(Output(1, kept, 1 << 60))) <= MAX_PACKET_BYTES


def test_lines_left_out_are_told_with_the_next_that_is_not():
    rate = OutputRate()
    first, told = rate.admit(1, "\n".join(map(str, range(OUTPUT_LINES_A_SECOND + 5))))
    assert first.split("\n") == list(map(str, range(OUTPUT_LINES_A_SECOND)))
    assert told == 5
    assert rate.admit(1, "more\nand more") == (None, 0)
    assert rate.admit(2, "another stream") == ("another stream", 0)
    rate.forget(1)
    assert rate.admit(1, "anew") == ("anew", 0)


def test_a_trainer_that_goes_while_it_is_told_costs_no_other_a_line():
    """A session that cannot be sent to takes its consumer with it: found as a daemon that ended by "dictionary changed
    size during iteration"."""
    consumers = {1: "dies", 2: "lives", 3: "lives"}
    heard = []

    def send(number: int, message: Output) -> None:
        if consumers[number] == "dies":
            del consumers[number]
        else:
            heard.append((number, message.text))

    engine = SimpleNamespace(streams={7: SimpleNamespace(consumers=consumers)})
    sessions = {number: SimpleNamespace(is_welcomed=True) for number in consumers}
    publishing = SimpleNamespace(listener=object(), sessions=sessions, send_if_clear=send)
    WorkerOutput(engine, publishing).tell(7, 0, "a line")
    assert heard == [(2, "a line"), (3, "a line")]


def test_what_is_not_for_trainers_is_logged_alone(caplog):
    heard = []
    engine = SimpleNamespace(streams={7: SimpleNamespace(name="s", consumers={1: ""}, counters=None)})
    sessions = {1: SimpleNamespace(is_welcomed=True)}
    publishing = SimpleNamespace(
        listener=object(), sessions=sessions, send_if_clear=lambda _, message: heard.append(message.text)
    )
    output = WorkerOutput(engine, publishing)
    with caplog.at_level("INFO", "prefetchd"):
        output.printed(7, 0, ["of the bridge"], 0, is_shown=False)
        output.printed(7, 4, ["of a worker"], 0)
    assert heard == ["of a worker"]
    assert [record.fields["line"] for record in caplog.records] == ["of the bridge", "of a worker"]
