"""What status says is wrong."""

from __future__ import annotations

from prefetchd.cli.health import DEGRADED, health
from prefetchd.cli.snapshot import Report
from tests.unit.cli.examples import ring, stream


def problems(of_ring):
    snapshot = {"workers": {"limit": 2, "asked": 2}, "streams": [stream(ring=of_ring)]}
    found = health(Report("running", 0.0, snapshot))
    assert found[0] == DEGRADED
    return found[1]


def test_a_ring_whose_name_was_removed_is_told_with_its_place():
    removed = ring(name_removed=True)
    of_an_older_daemon = {key: value for key, value in removed.items() if key != "directory"}
    for each in (removed, of_an_older_daemon):
        (problem,) = problems(each)
        assert "was removed from /dev/shm: " in problem
        assert "loginctl enable-linger" in problem


def test_a_logout_removes_nothing_from_a_ram_disk():
    (problem,) = problems(ring(name_removed=True, directory="/mnt/ram"))
    assert "was removed from /mnt/ram: " in problem
    assert "logout" not in problem
