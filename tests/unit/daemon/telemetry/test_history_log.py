"""The history file: what is written of examples, and what a reader finds of it."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from prefetchd.daemon.telemetry import history_log
from prefetchd.daemon.telemetry.history_log import HistoryLog
from prefetchd.wire.history_file import POINTS_EVERY_S, former, read_history
from tests.unit.cli.examples import report, stream


def snapshot(*streams: dict[str, Any], at_s: float) -> dict[str, Any]:
    found = report(*streams).snapshot
    assert found is not None
    return {**found, "taken_unix_s": 1000.0 + at_s}


def test_points_are_written_every_ten_seconds_with_rates(tmp_path):
    path = tmp_path / "history"
    log = HistoryLog(path, kept=False)
    for at_s in range(21):
        made = 100 + 3 * at_s
        log.note(snapshot(stream(produced_batches=made, consumed_batches=50 + 2 * at_s), at_s=at_s), float(at_s))
    found = list(read_history(path))
    assert [each["t"] for each in found] == [1000.0, 1000.0 + POINTS_EVERY_S, 1000.0 + 2 * POINTS_EVERY_S]
    ready, made, used, stalled, workers, ring_bytes, limit = found[1]["points"]["train.py:0"]
    assert (ready, made, used, stalled, workers, limit) == (0.5, 3.0, 2.0, 0.0, 2, "waiting")
    assert ring_bytes == 1 << 30
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_stream_that_ends_leaves_its_last_status(tmp_path):
    log = HistoryLog(tmp_path / "history", kept=False)
    log.note(snapshot(stream(), at_s=0.0), 0.0)
    log.note(snapshot(at_s=1.0), 1.0)
    ended = [each["ended"] for each in read_history(tmp_path / "history") if "ended" in each]
    assert [each["name"] for each in ended] == ["train.py:0"]
    assert ended[0]["verdict"]["limit"] == "waiting"
    assert ended[0]["slowest_samples"][0]["index"] == 31_007


def test_files_stay_within_their_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(history_log, "MOST_BYTES", 2000)
    path = tmp_path / "history"
    log = HistoryLog(path, kept=False)
    for step in range(100):
        log.note(snapshot(stream(), at_s=step * 10.0), step * 10.0)
    assert path.stat().st_size <= 2000
    assert former(path).stat().st_size <= 2000
    found = [each["t"] for each in read_history(path)]
    assert found == sorted(found)
    assert found[-1] == 1990.0
    assert len(found) > 20


@pytest.mark.parametrize(("kept", "drop", "stays"), [(False, True, False), (False, False, True), (True, True, True)])
def test_close_removes_a_history_that_is_not_kept(tmp_path, kept, drop, stays):
    path = tmp_path / "history"
    log = HistoryLog(path, kept=kept)
    log.note(snapshot(stream(), at_s=0.0), 0.0)
    log.close(drop=drop)
    assert path.exists() is stays


def test_history_that_cannot_be_written_is_logged_once(tmp_path, caplog):
    log = HistoryLog(tmp_path / "missing" / "history", kept=True)
    for at_s in (0.0, 10.0, 20.0):
        log.note(snapshot(stream(), at_s=at_s), at_s)
    assert [each.message for each in caplog.records] == ["history cannot be written"]


def test_link_in_the_place_of_the_history_is_not_followed(tmp_path, caplog):
    (tmp_path / "other").write_text("precious")
    os.symlink(tmp_path / "other", tmp_path / "history")
    HistoryLog(tmp_path / "history", kept=False).note(snapshot(stream(), at_s=0.0), 0.0)
    assert (tmp_path / "other").read_text() == "precious"


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "history"
    path.write_bytes(b'{"t":1.0,"points":{}}\n[1]\n{"t":"x"}\n\xff\xfe{\n{"t":2.0,"poi')
    assert list(read_history(path)) == [{"t": 1.0, "points": {}}]
    assert list(read_history(tmp_path / "none")) == []
