"""What a dead daemon leaves beside its segments. Real daemons and rings: tests/scenario/test_doctor.py."""

from __future__ import annotations

from prefetchd.cli.checks.finding import FAILED, OK
from prefetchd.cli.checks.leftovers import findings
from prefetchd.wire.history_file import former
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import runtime_paths


def test_history_of_a_dead_daemon_is_found_and_removed(tmp_path):
    tmp_path.chmod(0o700)
    paths = runtime_paths(str(tmp_path / "d.sock"))
    files = [former(paths.history), paths.history]
    for each in files:
        each.write_text('{"t": 1.0, "points": {}}\n')
    (finding,) = findings(paths, only=True, fix=False)
    assert finding.state == FAILED
    assert all(str(each) in finding.found for each in files)
    daemon = LockFile(paths.lock)
    assert daemon.acquire()
    (finding,) = findings(paths, only=True, fix=True)
    daemon.release()
    assert (finding.state, finding.found) == (OK, "none"), "a living daemon needs its history"
    (finding,) = findings(paths, only=True, fix=True)
    assert finding.state == OK
    assert not any(each.exists() for each in files)
