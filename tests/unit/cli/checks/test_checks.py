"""Each check of the doctor, on machines that are made up."""

from __future__ import annotations

import os
import resource
from collections import namedtuple

import pytest

from prefetchd.cli.checks import cluster, login, memory, mounts, processes, versions
from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, UNKNOWN, Finding
from prefetchd.status.snapshot import Report
from prefetchd.wire.messages import PROTOCOL_VERSION
from prefetchd.wire.runtime_paths import runtime_paths

GIB = 1 << 30
Stat = namedtuple("Stat", "f_blocks f_bavail f_frsize")


def complete(finding: Finding) -> Finding:
    """Everybody is told why it matters; who is told that something is wrong, what to do."""
    assert finding.why, finding
    assert (finding.state in (ADVICE, FAILED)) == bool(finding.fix), finding
    return finding


@pytest.mark.parametrize(
    ("size", "free", "state"),
    [(64 << 20, 64 << 20, FAILED), (512 << 20, 512 << 20, ADVICE), (16 * GIB, GIB, ADVICE), (16 * GIB, 8 * GIB, OK)],
)
def test_shared_memory(monkeypatch, tmp_path, size, free, state):
    monkeypatch.setattr(os, "statvfs", lambda _: Stat(size // 4096, free // 4096, 4096))
    assert complete(memory.shared_memory(str(tmp_path))).state == state


def test_no_shared_memory(tmp_path):
    assert complete(memory.shared_memory(str(tmp_path / "none"))).state == FAILED


@pytest.mark.parametrize(("headroom", "state"), [(None, OK), (GIB, ADVICE), (64 * GIB, OK)])
def test_cgroup_memory(headroom, state):
    assert complete(memory.cgroup_memory(headroom)).state == state


def test_locked_memory_without_a_limit():
    assert complete(memory.locked_memory(resource.RLIM_INFINITY)).state == OK


@pytest.mark.parametrize(("gpu", "state"), [(True, ADVICE), (False, OK)])
def test_locked_memory_with_a_limit(tmp_path, monkeypatch, gpu, state):
    monkeypatch.setattr(memory, "GPU_DEVICE", str(tmp_path if gpu else tmp_path / "none"))
    finding = complete(memory.locked_memory(8 << 20))
    assert finding.state == state
    assert finding.found.startswith("limit 8.0 MiB")


def test_ram_disks(tmp_path, monkeypatch):
    table = tmp_path / "mounts"
    table.write_text("tmpfs /dev/shm tmpfs rw 0 0\ntmpfs /mnt/ram tmpfs rw 0 0\n/dev/sda / ext4 rw 0 0\n")
    monkeypatch.setattr(os, "statvfs", lambda _: Stat(2 * GIB // 4096, GIB // 4096, 4096))
    assert complete(memory.ram_disks(table)).found == "/mnt/ram (tmpfs, 1.0 GiB free)"
    assert complete(memory.ram_disks(tmp_path / "none")).state == UNKNOWN


@pytest.mark.parametrize(
    ("below", "wanted", "state", "text"),
    [
        ("ram/rings", GIB, OK, "tmpfs, 1.0 GiB free"),
        ("ram", 0, OK, "tmpfs, 1.0 GiB free"),
        ("ram/rings", 3 * GIB, FAILED, "tmpfs of 2.0 GiB, for buffers of 3.0 GiB"),
        ("other", GIB, ADVICE, "on ext4, which is not in memory"),
        ("ram/hidden", GIB, ADVICE, "on xfs, which is not in memory"),
    ],
)
def test_what_the_configuration_names(tmp_path, monkeypatch, below, wanted, state, text):
    for name in ("ram/rings", "ram/hidden", "other"):
        (tmp_path / name).mkdir(parents=True)
    table = tmp_path / "mounts"
    table.write_text(
        f"/dev/sda / ext4 rw 0 0\ntmpfs {tmp_path}/ram tmpfs rw 0 0\n"
        f"tmpfs {tmp_path}/ram/hidden tmpfs rw 0 0\n/dev/sdb {tmp_path}/ram/hidden xfs rw 0 0\n"
    )
    monkeypatch.setattr(os, "statvfs", lambda _: Stat(2 * GIB // 4096, GIB // 4096, 4096))
    finding = complete(memory.declared_store(str(tmp_path / below), wanted, table))
    assert (finding.state, finding.found) == (state, text)


def test_a_directory_that_the_configuration_names_is_not_there(tmp_path):
    finding = complete(memory.declared_store(str(tmp_path / "none"), 0, memory.MOUNTS))
    assert (finding.state, finding.found) == (FAILED, "cannot be used: No such file or directory")


def test_own_directories_in_memory(tmp_path):
    disk, other = tmp_path / "a disk", tmp_path / "other"
    (disk / "rings").mkdir(parents=True)
    (disk / "rings" / "deeper").mkdir()
    (disk / "file").touch()
    (other / "inner").mkdir(parents=True)
    table = tmp_path / "mounts"
    place = str(disk).replace(" ", "\\040")
    table.write_text(
        f"none {place} hugetlbfs rw 0 0\n/dev/sda {other} ext4 rw 0 0\ntmpfs /no/such/place tmpfs rw 0 0\n"
    )
    assert mounts.own_directories_in_memory(table) == [str(disk), str(disk / "rings")]


def test_directories_of_other_users_are_not_looked_into(tmp_path, monkeypatch):
    (tmp_path / "disk" / "rings").mkdir(parents=True)
    table = tmp_path / "mounts"
    table.write_text(f"tmpfs {tmp_path}/disk tmpfs rw 0 0\n")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert mounts.own_directories_in_memory(table) == [str(tmp_path / "disk")]


# --- RemoveIPC ---


def system(tmp_path, *, conf="", drop_in="", lingers=False, runs=True):
    if runs:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text(f"[Login]\n{conf}\n")
    (tmp_path / "etc/systemd/logind.conf.d/10-own.conf").write_text(f"[Login]\n{drop_in}\n")
    if lingers:
        (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
        (tmp_path / "var/lib/systemd/linger/ada").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("made", "uid", "state"),
    [
        ({}, 1000, ADVICE),
        ({"conf": "#RemoveIPC=no"}, 1000, ADVICE),
        ({"conf": "RemoveIPC=no"}, 1000, OK),
        ({"conf": "RemoveIPC=no", "drop_in": "RemoveIPC=yes"}, 1000, ADVICE),
        ({"lingers": True}, 1000, OK),
        ({}, 0, OK),
        ({"runs": False}, 1000, OK),
    ],
)
def test_what_a_logout_removes(tmp_path, made, uid, state):
    finding = complete(login.removal_at_logout(system(tmp_path, **made), uid, "ada"))
    assert finding.state == state
    assert state == OK or finding.fix == "loginctl enable-linger ada"


# --- processes ---


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (processes.descriptors(1024), ADVICE),
        (processes.descriptors(1 << 20), OK),
        (processes.descriptors(resource.RLIM_INFINITY), OK),
        (processes.affinity(2, 16), ADVICE),
        (processes.affinity(16, 16), OK),
        (processes.quota(2, 16), ADVICE),
        (processes.quota(16, 16), OK),
        (processes.niceness(10), ADVICE),
        (processes.niceness(0), OK),
    ],
)
def test_what_workers_need(finding, state):
    assert complete(finding).state == state


# --- versions ---


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"software": "0.0.1", "protocol": PROTOCOL_VERSION}, ADVICE),
        ({"software": "9", "protocol": PROTOCOL_VERSION + 1}, FAILED),
        ({"software": versions.__version__, "protocol": PROTOCOL_VERSION}, OK),
    ],
)
def test_the_daemon_s_version(monkeypatch, tmp_path, told, state):
    monkeypatch.setattr(versions, "read_report", lambda _: Report("running", 0.0, {"daemon": told}))
    assert complete(versions.daemon_version(runtime_paths(tmp_path / "d.sock"))).state == state


def test_no_daemon_has_no_version(tmp_path):
    assert complete(versions.daemon_version(runtime_paths(tmp_path / "d.sock"))).state == OK


@pytest.mark.parametrize(
    ("said", "states"),
    [
        ('{"torch": "2.9", "gpus": 0}', [OK, OK]),
        ('{"torch": "2.9", "gpus": 1, "code": 0, "pinned": true}', [OK, OK]),
        ('{"torch": "2.9", "gpus": 1, "code": 0, "pinned": false}', [OK, ADVICE]),
        ('{"torch": "2.9", "gpus": 1, "code": 801}', [OK, FAILED]),
        ('{"torch": "2.9", "gpus": 1, "error": "RuntimeError: x"}', [OK, UNKNOWN]),
        ("", [FAILED]),
    ],
)
def test_torch_and_the_gpu(monkeypatch, said, states):
    monkeypatch.setattr(versions, "_output_of", lambda _: said)
    monkeypatch.setattr(versions, "GPU_DEVICE", "/no/such/device")
    assert [complete(each).state for each in versions.torch_and_gpu()] == states


# --- a node of a Ray cluster ---


def runs(directory, *command: str):
    """A machine on which this runs, and something else."""
    for pid, words in ((7, command), (8, ("/usr/bin/python3", "raylet.py"))):
        (directory / str(pid)).mkdir()
        (directory / str(pid) / "cmdline").write_bytes(b"\0".join(map(os.fsencode, words)) + b"\0")
    (directory / "meminfo").write_text("")
    return directory


def raylet(cpus: str = "", store: int = 2 * 10**9) -> tuple[str, ...]:
    resources = f"node:10.0.0.2,1.0,{cpus}object_store_memory,{store}.0"
    shown = (f"--static_resource_list={resources}", f"--object_store_memory={store}", "--plasma_directory=/dev/shm")
    return ("/venv/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=/tmp/ray/x", *shown)


def test_a_node_that_leaves_cpus_and_memory_to_the_trainer(tmp_path):
    found = list(map(complete, cluster.findings("head:6379", runs(tmp_path, *raylet()))))
    assert [each.state for each in found] == [OK, OK]
    assert found[1].found == "1.9 GiB in /dev/shm"


def test_a_node_as_ray_starts_it(tmp_path):
    found = list(map(complete, cluster.findings("", runs(tmp_path, *raylet("CPU,32.0,GPU,8.0,", 200 * 10**9)))))
    assert [each.state for each in found] == [ADVICE, ADVICE]
    assert found[0].found == "32 on this machine"
    assert all("--num-cpus=0 --object-store-memory=" in each.fix for each in found)


def test_a_machine_that_is_to_be_a_node_and_is_none(tmp_path):
    (found,) = map(complete, cluster.findings("head:6379", runs(tmp_path, "sleep", "1")))
    assert found.state == FAILED


def test_where_nobody_wants_a_cluster_nothing_is_said(tmp_path):
    assert not list(cluster.findings("", runs(tmp_path, "sleep", "1")))
