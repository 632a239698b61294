"""What status says is wrong."""

from __future__ import annotations

from prefetchd.diagnosis.health import ABSENT, DEGRADED, HEALTHY, health
from tests.unit.cli.examples import ring, stream


def problems(of_ring, **changes):
    snapshot = {"workers": {"limit": 2, "asked": 2}, "streams": [stream(ring=of_ring, **changes)]}
    found = health("running", 0.0, snapshot)
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


def test_batches_that_cannot_be_stored_are_a_problem():
    (problem,) = problems(ring(), store_fault="/mnt/ram: No space left on device")
    assert problem == "batches of train.py:0 cannot be stored: /mnt/ram: No space left on device"


def test_a_declared_stream_that_will_never_be_is_a_problem():
    failed = {"name": "typo", "settled": True, "failure": "No module named 'datta'"}
    looked_at = {"name": "later", "settled": False, "failure": ""}
    snapshot = {"workers": {"limit": 0, "asked": 0}, "streams": [], "declared": [failed, looked_at]}
    assert health("running", 0.0, snapshot) == (
        DEGRADED,
        ["declared stream typo has failed: No module named 'datta'"],
    )


def test_a_daemon_that_hangs_or_is_dead_is_degraded_and_without_a_snapshot_it_is_absent():
    snapshot = {"workers": {"limit": 0, "asked": 0}, "streams": []}
    assert health("running", 0.1, snapshot) == (HEALTHY, [])
    assert health("hanging", 4.0, snapshot)[1] == ["the daemon hangs: its last sign of life is 4.0 s old"]
    assert health("dead", 4.0, snapshot)[1] == ["the daemon is dead: its last sign of life is 4.0 s old"]
    assert health("absent", None, None) == (ABSENT, [])
