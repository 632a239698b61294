"""What there is to take, read from file systems and cgroups as kernels show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefetchd.ring.memory_limits import cgroup_headroom_bytes, cgroup_limit_bytes, free_bytes, total_bytes

MIB = 1 << 20
UNLIMITED = str(0x7FFFFFFFFFFFF000)


@pytest.fixture
def headroom(tmp_path):
    """cgroup_headroom_bytes of a machine whose files are these."""

    def read(membership: str | None, files: dict[str, object]) -> int | None:
        for path, content in files.items():
            file = tmp_path / "cgroup" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        told = tmp_path / "membership"
        if membership is not None:
            told.write_text(membership)
        return cgroup_headroom_bytes(str(tmp_path / "cgroup"), str(told))

    return read


V2 = {"cgroup.controllers": "cpu memory"}


def test_version_2(headroom):
    files = {"a/memory.max": 100 * MIB, "a/memory.current": 30 * MIB}
    assert headroom("0::/a\n", V2 | files) == 70 * MIB


def test_file_cache_that_can_be_given_up_counts_as_left(headroom):
    stat = f"anon 5\ninactive_file {20 * MIB}\nactive_file {5 * MIB}\nshmem 7"
    files = {"a/memory.max": 100 * MIB, "a/memory.current": 30 * MIB, "a/memory.stat": stat}
    assert headroom("0::/a\n", V2 | files) == 90 * MIB


def test_the_tightest_level_decides(headroom):
    files = {
        "a/b/c/memory.max": "max",
        "a/b/c/memory.current": 1 * MIB,
        "a/b/memory.max": 50 * MIB,
        "a/b/memory.current": 10 * MIB,
        "a/memory.max": 100 * MIB,
        "a/memory.current": 95 * MIB,
    }
    assert headroom("0::/a/b/c\n", V2 | files) == 5 * MIB


@pytest.mark.parametrize(
    ("most", "high", "left"),
    [(100 * MIB, 50 * MIB, 20), (100 * MIB, 200 * MIB, 70), ("max", 50 * MIB, 20), (100 * MIB, "max", 70)],
)
def test_what_would_slow_us_down_is_a_limit_as_well(headroom, most, high, left):
    for group in ("a", "a/b"):
        files = {f"{group}/memory.max": most, f"{group}/memory.high": high, f"{group}/memory.current": 30 * MIB}
        assert headroom("0::/a/b\n", V2 | files) == left * MIB


def test_a_container_sees_its_own_cgroup_as_the_root(headroom):
    files = {"memory.max": 64 * MIB, "memory.current": 60 * MIB}
    assert headroom("0::/\n", V2 | files) == 4 * MIB
    assert headroom("0::/../../kubepods/pod\n", V2 | files) == 4 * MIB


def test_a_path_that_leads_out_of_the_mount_is_not_followed(headroom):
    files = {"../memory.max": 5, "../memory.current": 5, "memory.max": 64 * MIB, "memory.current": 60 * MIB}
    assert headroom("0::/../other\n", V2 | files) == 4 * MIB


def test_more_used_than_allowed_leaves_nothing(headroom):
    assert headroom("0::/a\n", V2 | {"a/memory.max": MIB, "a/memory.current": 2 * MIB}) == 0


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/a\n", {"a/memory.max": "max", "a/memory.high": "max", "a/memory.current": 5}),
        ("0::/a\n", {}),
        ("0::/a\n", {"a/memory.max": 100, "a/memory.current": "what?"}),
        ("12:cpu,cpuacct:/a\n", {"memory/a/memory.limit_in_bytes": 100, "memory/a/memory.usage_in_bytes": 1}),
        ("9:memory:/a\n", {"memory/a/memory.limit_in_bytes": UNLIMITED, "memory/a/memory.usage_in_bytes": 1}),
        (None, {"memory.max": 100, "memory.current": 1}),
        ("", {}),
    ],
    ids=["max", "no files", "no number", "another controller", "version 1 without a limit", "no proc", "no cgroup"],
)
def test_no_limit(headroom, membership, files):
    assert headroom(membership, V2 | files) is None


def test_version_1(headroom):
    files = {
        "memory/docker/x/memory.limit_in_bytes": 200 * MIB,
        "memory/docker/x/memory.usage_in_bytes": 150 * MIB,
        "memory/docker/x/memory.stat": f"inactive_file 1\ntotal_inactive_file {30 * MIB}",
        "memory/memory.limit_in_bytes": UNLIMITED,
        "memory/memory.usage_in_bytes": 900 * MIB,
    }
    assert headroom("12:cpu,cpuacct:/\n9:memory:/docker/x\n0::/\n", files) == 80 * MIB


def test_both_versions_side_by_side(headroom):
    """As systemd mounts them in its hybrid mode: version 2 under unified, without a memory controller there."""
    files = {
        "unified/cgroup.controllers": "",
        "memory/a/memory.limit_in_bytes": 100 * MIB,
        "memory/a/memory.usage_in_bytes": 40 * MIB,
    }
    assert headroom("4:memory,hugetlb:/a\n0::/a\n", files) == 60 * MIB
    files = {"unified/b/memory.max": 10 * MIB, "unified/b/memory.current": 1 * MIB}
    assert headroom("0::/b\n", files) == 9 * MIB


def test_a_path_with_a_colon(headroom):
    files = {"a:b/memory.max": 10 * MIB, "a:b/memory.current": 1 * MIB}
    assert headroom("0::/a:b\n", V2 | files) == 9 * MIB


def test_this_machine_s_own_files_can_be_read():
    found = cgroup_headroom_bytes()
    assert found is None or found >= 0


def test_free_bytes_are_what_a_file_may_still_take(tmp_path):
    before = free_bytes("/dev/shm")
    assert 0 < before <= os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    assert free_bytes(str(tmp_path)) > 0
    with pytest.raises(FileNotFoundError):
        free_bytes(str(Path(tmp_path) / "missing"))


def test_a_file_system_has_more_in_all_than_is_free():
    whole = os.statvfs("/dev/shm")
    assert free_bytes("/dev/shm") <= total_bytes("/dev/shm") == whole.f_blocks * whole.f_frsize
    assert free_bytes("/proc") <= total_bytes("/proc") <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_least_limit_of_all_levels_is_told_whatever_is_used(tmp_path):
    for path, content in {
        "cgroup.controllers": "cpu memory",
        "a/b/memory.max": "max",
        "a/memory.max": 100 * MIB,
        "a/memory.high": 80 * MIB,
        "a/memory.current": 95 * MIB,
        "memory.max": 200 * MIB,
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert cgroup_limit_bytes(str(tmp_path), str(tmp_path / "membership")) == 80 * MIB
    assert cgroup_limit_bytes(str(tmp_path / "none"), str(tmp_path / "membership")) is None


def test_a_file_system_without_a_bound_has_what_the_machine_has_left():
    # Its statvfs says 0 of 0.
    assert os.statvfs("/proc").f_blocks == 0
    assert 0 < free_bytes("/proc") <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
