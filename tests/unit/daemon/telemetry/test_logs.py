"""The daemon's log: one JSON object a line, whatever is logged, in a file that does not grow for ever."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from prefetchd.cli.logs import readable
from prefetchd.daemon.telemetry import logs
from prefetchd.daemon.telemetry.logs import JournalLines, JsonLines, is_journal, log_to
from prefetchd.wire.errors import CallerError

log = logging.getLogger("prefetchd")


@pytest.fixture(autouse=True)
def logger():
    """The log as it was, afterwards."""
    before = log.handlers[:], log.level, log.propagate
    yield log
    for handler in log.handlers:
        if handler not in before[0]:
            handler.close()
    log.handlers[:], log.level, log.propagate = before
    # As pytest has it.
    faulthandler.enable(sys.__stderr__)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_time_level_event_and_its_fields(tmp_path):
    path = tmp_path / "state" / "daemon.log"
    log_to(path, "info")
    log.warning("worker died", extra={"fields": {"worker": 3, "how": "killed by SIGKILL", "tasks": 2}})
    (line,) = lines(path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "event": "worker died",
        "worker": 3,
        "how": "killed by SIGKILL",
        "tasks": 2,
    }


def test_the_time_is_utc():
    record = logging.LogRecord("prefetchd", logging.INFO, "", 0, "event", (), None)
    record.created, record.msecs = 0.25, 250.0
    assert json.loads(JsonLines().format(record))["time"] == "1970-01-01T00:00:00.250Z"


@pytest.mark.parametrize(
    ("level", "told"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3), ("critical", 2), (25, 6)]
)
def test_the_journal_is_told_the_level(level, told):
    number = level if isinstance(level, int) else logging.getLevelName(level.upper())
    record = logging.LogRecord("prefetchd", number, "", 0, "event", (), None)
    prefix, line = JournalLines().format(record).split(">", 1)
    assert prefix == f"<{told}"
    assert json.loads(line)["event"] == "event"


def test_only_the_stream_that_systemd_has_made_is_the_journal(tmp_path):
    with open(tmp_path / "stream", "wb") as stream:
        stated = os.fstat(stream.fileno())
        for told, expected in (
            (f"{stated.st_dev}:{stated.st_ino}", True),
            (f"{stated.st_dev}:{stated.st_ino + 1}", False),
            (f"{stated.st_dev + 1}:{stated.st_ino}", False),
            ("", False),
            ("8", False),
            (":", False),
            ("a:b", False),
        ):
            assert is_journal(stream.fileno(), {"JOURNAL_STREAM": told}) is expected, told
        assert not is_journal(stream.fileno(), {})
    assert not is_journal(10_000, {"JOURNAL_STREAM": f"{stated.st_dev}:{stated.st_ino}"})


def test_a_traceback_goes_into_its_line(tmp_path):
    path = tmp_path / "daemon.log"
    log_to(path, "info")
    try:
        raise ArithmeticError("no sum")
    except ArithmeticError:
        log.exception("crashed")
    (line,) = lines(path)
    assert (line["level"], line["event"]) == ("error", "crashed")
    assert line["traceback"].endswith("ArithmeticError: no sum")
    assert "\n" in line["traceback"]


@pytest.mark.parametrize("value", ["two\nlines", "\x00\x1b[31m", "Жß\u2028", "\udc80", "x" * 100_000], ids=ascii)
def test_whatever_is_logged_is_one_line(tmp_path, value):
    path = tmp_path / "daemon.log"
    log_to(path, "info")
    log.info("output", extra={"fields": {"line": value[:100]}})
    assert len(path.read_bytes().splitlines()) == 1
    assert lines(path)[0]["line"] == value[:100]


def test_values_that_json_does_not_know_are_shown(tmp_path):
    path = tmp_path / "daemon.log"
    log_to(path, "info")
    log.info("event", extra={"fields": {"path": Path("/x"), "bytes": b"\xff"}})
    assert lines(path)[0]["path"] == "/x"
    assert lines(path)[0]["bytes"] == "b'\\xff'"


def test_the_level_is_the_least_that_is_kept(tmp_path):
    path = tmp_path / "daemon.log"
    log_to(path, "warning")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        log.log(level, "event")
    assert [line["level"] for line in lines(path)] == ["warning", "error"]


def test_without_a_file_it_goes_to_stderr_and_nowhere_else(capsys):
    log_to(None, "info")
    log.info("started")
    said = capsys.readouterr()
    assert json.loads(said.err)["event"] == "started"
    assert said.out == ""
    assert not log.propagate


def test_the_directory_is_private_and_an_existing_log_is_continued(tmp_path):
    path = tmp_path / "state" / "daemon.log"
    for event in ("one", "two"):
        log_to(path, "info")
        log.info(event)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [line["event"] for line in lines(path)] == ["one", "two"]
    assert len(log.handlers) == 1


def test_the_log_is_bounded_and_no_line_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "ROTATE_BYTES", 2000)
    path = tmp_path / "daemon.log"
    log_to(path, "info")
    for number in range(200):
        log.info("event", extra={"fields": {"number": number}})
    files = sorted(os.listdir(tmp_path))
    assert files == ["daemon.log", "daemon.log.1", "daemon.log.2", "daemon.log.3"]
    kept = [line["number"] for name in reversed(files) for line in lines(tmp_path / name)]
    assert kept == list(range(kept[0], 200))
    assert all((tmp_path / name).stat().st_size <= 2000 for name in files)


def test_a_stack_goes_into_no_file_that_is_closed(tmp_path):
    """Its number may be that of a ring by then."""
    log_to(tmp_path / "daemon.log", "info")
    assert faulthandler.is_enabled()
    (handler,) = log.handlers
    handler.close()
    assert not faulthandler.is_enabled()
    # Whoever logs once more opens it again.
    os.unlink(tmp_path / "daemon.log")
    os.mkdir(tmp_path / "daemon.log")
    with pytest.raises(OSError, match="Is a directory"):
        handler._open()
    assert not faulthandler.is_enabled()


def test_a_place_that_cannot_be_written_is_told_with_the_knob(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CallerError, match=r"cannot be written: Not a directory.*XDG_STATE_HOME"):
        log_to(tmp_path / "file" / "daemon.log", "info")


# --- the same lines on the screen ---


def test_a_readable_line_has_time_level_event_and_fields():
    line = '{"time": "2030-01-02T03:04:05.678Z", "level": "info", "event": "started", "pid": 9, "version": "1"}'
    assert readable(line) == "2030-01-02T03:04:05.678Z  info     started  pid=9  version=1"


def test_a_readable_line_without_fields_ends_with_its_event():
    line = '{"time": "t", "level": "warning", "event": "workers"}\n'
    assert readable(line) == "t  warning  workers"


def test_a_traceback_follows_its_line():
    line = '{"time": "t", "level": "error", "event": "crashed", "traceback": "Traceback:\\n  x"}\n'
    assert readable(line) == "t  error    crashed\nTraceback:\n  x"


@pytest.mark.parametrize("line", ["", "no json\n", "[1]\n", '{"time": "t"}\n', '"text"\n', "{\n", "null\n"])
def test_what_is_no_line_of_ours_is_shown_as_it_is(line):
    assert readable(line) == line.rstrip("\n")


def test_the_screen_needs_no_log_module():
    assert "prefetchd.daemon" not in sys.modules["prefetchd.cli.logs"].__dict__
