"""Names, paths and errors of somebody else's are shown, and no terminal obeys what is in them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest

from prefetchd.cli.checks.finding import Finding
from prefetchd.cli.doctor import _show
from prefetchd.cli.logs import readable
from prefetchd.cli.render import render
from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.errors import CallerError
from prefetchd.wire.printable import one_line, printable
from prefetchd.wire.stream_spec import StreamSpec
from tests.attacks.another_user import as_nobody, as_root
from tests.scenario.waiting import report_when
from tests.unit.cli.examples import every_state

EVIL = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\x7f\u202etxt\u2028\x00"


def is_clean(text):
    return not any(ord(each) < 32 or 127 <= ord(each) < 160 or each in "\u202e\u2028" for each in text)


def test_a_line_has_no_control_character():
    assert one_line(EVIL) == r"\x1b]0;owned\x07\x1b[2J\x0d\x0a\x9b31m\x7f\u202etxt\u2028\x00"
    assert one_line("träin → 3 µs ▁▂▃ 画像 😀") == "träin → 3 µs ▁▂▃ 画像 😀"
    assert one_line("\udcff\U000e0001") == r"\udcff\U000e0001"
    assert printable("a\n\tb\x1b") == "a\n    b\\x1b"


def poisoned(value):
    """The same, with EVIL in each text."""
    if isinstance(value, dict):
        return {key: poisoned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    return value + EVIL if isinstance(value, str) else value


def test_status_prints_none_whatever_the_segment_says():
    found = every_state()
    before = status_object(found)
    assert before["streams"], "the example has streams"
    lines = render(poisoned(copy.deepcopy(before)), Path("/run/x" + EVIL), 80, history=True)
    assert r"\x1b]0;owned" in "".join(lines)
    assert all(map(is_clean, lines))


def test_logs_and_doctor_print_none(capsys):
    line = {"time": "t" + EVIL, "level": "info", "event": EVIL, "why": EVIL, "traceback": f"a{EVIL}"}
    for text in (json.dumps(line), f"no JSON {EVIL}"):
        assert all(map(is_clean, readable(text).split("\n")))
    _show(Finding("leftovers", "failed", EVIL, EVIL, EVIL))
    assert all(map(is_clean, capsys.readouterr().out.split("\n")))


def test_verbs_print_none_in_their_errors(daemon, open_directory):
    # In a short path: of a long one it would only be said that no socket can be there.
    evil = open_directory / EVIL.replace("\x00", "")
    evil.mkdir()
    fingerprint = evil / ("a" * 32)
    fingerprint.mkdir()
    (fingerprint / "cache.json").write_text(json.dumps({"version": EVIL}))
    (evil / "config").touch()
    daemon.start()
    for arguments in (
        ("cache", "ls", str(evil)),
        ("cache", "verify", str(evil)),
        ("cache", "rm", str(evil), EVIL.replace("\x00", "")),
        ("cache", "rm", str(evil), fingerprint.name),
        ("config", "check", str(evil / "none")),
        ("config", "check", str(evil / "config")),
        ("status", "--socket", str(evil / "d.sock")),
        ("stop", "--socket", str(evil / "d.sock")),
        ("trace", "--seconds", "0.1", "--output", str(evil / "none" / "trace")),
        ("trace", "--seconds", "0.1", "--output", str(evil / "trace")),
    ):
        done = daemon.command(*arguments, check=False)
        assert r"\x1b]0;owned" in done.stdout + done.stderr, arguments
        assert all(map(is_clean, (done.stdout + done.stderr).split("\n"))), arguments


@pytest.mark.parametrize("each", [each for each in EVIL if not is_clean(each)], ids=ascii)
def test_no_stream_and_so_no_label_of_metrics_has_one_in_its_name(each):
    with pytest.raises(CallerError) as caught:
        StreamSpec("0" * 32, 0, "sequential", 13, 3, name=f"a{each}b")
    assert is_clean(str(caught.value))


@as_root
def test_another_user_s_status_segment_is_never_shown(daemon):
    """Not while there is no daemon, and not beside ours."""
    daemon.start()
    report_when(daemon, lambda found: found.state == "running", "it runs")
    ours = Path("/dev/shm" + daemon.paths.status_segment)
    content = ours.read_bytes()
    daemon.command("stop")
    try:
        as_nobody(lambda: ours.write_bytes(content))
        os.chmod(ours, 0o644)
        assert read_report(daemon.paths).state == "absent"
        daemon.start()
        assert read_report(daemon.paths).state == "running"
        assert read_report(daemon.paths).snapshot["daemon"]["pid"] == daemon.pid
        daemon.command("stop")
    finally:
        ours.unlink(missing_ok=True)
