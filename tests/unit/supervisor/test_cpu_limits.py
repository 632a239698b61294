"""How many workers a daemon has when nobody says: read from cgroups as kernels show them."""

from __future__ import annotations

import os

import pytest

from prefetchd.supervisor.cpu_limits import usable_cpus

CPUS = 8


@pytest.fixture
def cpus(tmp_path, monkeypatch):
    """usable_cpus() of a process that is bound to CPUS CPUs and whose files are these."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CPUS)))

    def read(membership: str, files: dict[str, str]) -> int:
        for path, content in files.items():
            file = tmp_path / "cgroup" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        told = tmp_path / "membership"
        told.write_text(membership)
        return usable_cpus(str(tmp_path / "cgroup"), str(told))

    return read


V2 = {"cgroup.controllers": "cpu memory"}


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("300000 100000", 3),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("2000000 100000", CPUS),
        ("max 100000", CPUS),
        ("what?", CPUS),
    ],
)
def test_version_2(cpus, quota, expected):
    assert cpus("0::/a\n", V2 | {"a/cpu.max": quota}) == expected


def test_the_tightest_level_decides(cpus):
    files = {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "400000 100000"}
    assert cpus("0::/a/b\n", V2 | files) == 2
    assert cpus("0::/a/b\n", {"a/b/cpu.max": "100000 100000"}) == 1


def test_the_quota_of_others_is_not_ours(cpus):
    assert cpus("0::/a\n", V2 | {"b/cpu.max": "100000 100000", "a/c/cpu.max": "100000 100000"}) == CPUS


def test_a_container_sees_its_own_cgroup_as_the_root(cpus):
    assert cpus("0::/../../kubepods/pod\n", V2 | {"cpu.max": "200000 100000"}) == 2


def test_version_1(cpus):
    files = {
        "cpu/docker/x/cpu.cfs_quota_us": "-1",
        "cpu/docker/x/cpu.cfs_period_us": "100000",
        "cpu/docker/cpu.cfs_quota_us": "250000",
        "cpu/docker/cpu.cfs_period_us": "50000",
    }
    membership = "12:cpu,cpuacct:/docker/x\n9:memory:/docker/y\n0::/\n"
    assert cpus(membership, files) == 5
    assert cpus(membership, {"cpu/docker/x/cpu.cfs_quota_us": "20000"}) == 1
    assert cpus("3:cpuset:/docker/x\n", {}) == CPUS, "another controller"


def test_without_cgroups_it_is_what_the_process_is_bound_to(cpus, tmp_path):
    assert cpus("", {}) == CPUS
    assert usable_cpus(str(tmp_path), str(tmp_path / "missing")) == CPUS


def test_this_process():
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))
