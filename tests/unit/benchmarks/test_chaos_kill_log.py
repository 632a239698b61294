"""The log of kills says who died, where and when."""

from __future__ import annotations

from benchmarks.chaos.kill_log import kills_by_pid, kills_by_point


def test_kills_are_counted_point_by_point(tmp_path):
    log = tmp_path / "kills"
    log.write_text("worker.started 7 worker 1.5\ndaemon.start.deaf 8 daemon 1.6\nworker.started 9 worker 1.7\n")
    assert kills_by_point(log) == {"worker.started": 2, "daemon.start.deaf": 1}
    assert kills_by_pid(log) == {7: 1.5, 8: 1.6, 9: 1.7}


def test_nobody_was_killed_before_there_is_a_log(tmp_path):
    assert kills_by_point(tmp_path / "none")["worker.started"] == 0
    assert not kills_by_pid(tmp_path / "none")
