"""What the doctor says to people, and its exit code."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from prefetchd.cli import doctor
from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, UNKNOWN, Finding
from tests.unit.cli.test_colours import Terminal

FINE = Finding("nice", OK, "0", "a daemon inherits it")
BETTER = Finding("CPU affinity", ADVICE, "bound to 2 of 16 CPUs", "workers use no others", "without taskset")
WRONG = Finding("leftovers", FAILED, "1.0 MiB: /dev/shm/x", "nobody uses it", "prefetchd doctor --fix")
UNASKED = Finding("RAM disks", UNKNOWN, "/proc/self/mounts: Permission denied", "rings may be there")


def told(monkeypatch, *findings):
    monkeypatch.setattr(doctor, "findings", lambda paths, config, *, only, fix: iter(findings))
    return CliRunner().invoke(doctor.command, [])


def test_what_is_wrong_is_told_with_its_reason_and_the_fix(monkeypatch):
    assert told(monkeypatch, FINE, BETTER, WRONG, UNASKED).output == (
        "ok      nice: 0\n"
        "advice  CPU affinity: bound to 2 of 16 CPUs\n"
        "        why: workers use no others\n"
        "        fix: without taskset\n"
        "FAILED  leftovers: 1.0 MiB: /dev/shm/x\n"
        "        why: nobody uses it\n"
        "        fix: prefetchd doctor --fix\n"
        "?       RAM disks: /proc/self/mounts: Permission denied\n"
    )


@pytest.mark.parametrize(
    ("variables", "wanted"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_marks_have_colours_on_a_terminal_unless_nobody_wants_them(monkeypatch, variables, wanted):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    for finding in (FINE, BETTER, WRONG):
        doctor._show(finding)
    assert terminal.getvalue().count("\x1b[0m") == (3 if wanted else 0)


@pytest.mark.parametrize(
    ("found", "code"), [([], 0), ([FINE], 0), ([FINE, BETTER, UNASKED], 0), ([FINE, WRONG, FINE], 3)]
)
def test_only_what_has_failed_is_a_failure(monkeypatch, found, code):
    assert told(monkeypatch, *found).exit_code == code
