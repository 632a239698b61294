"""Checks that there is memory for rings: shared memory, cgroups, locked memory, RAM disks."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, UNKNOWN, Finding
from prefetchd.cli.checks.mounts import IN_MEMORY, MOUNTS, mounts_in_memory, type_of
from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.ring.memory_limits import cgroup_headroom_bytes
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.runtime_paths import SHARED_MEMORY

GIB = 1 << 30
DOCKERS_OWN_BYTES = 64 << 20
SMALL_BYTES = GIB
GPU_DEVICE = "/dev/nvidiactl"


def findings(streams: Iterable[StreamConfig] = ()) -> Iterator[Finding]:
    """Yields all findings about memory; `streams` are those of the configuration."""
    yield shared_memory(SHARED_MEMORY)
    yield cgroup_memory(cgroup_headroom_bytes())
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
    yield ram_disks(MOUNTS)
    declared: dict[str, int] = {}
    for stream in streams:
        if stream.directory:
            declared[stream.directory] = declared.get(stream.directory, 0) + stream.buffer_bytes
    for directory, wanted_bytes in declared.items():
        yield declared_store(directory, wanted_bytes, MOUNTS)


def shared_memory(directory: str) -> Finding:
    """Checks the shared memory, where rings are made."""
    check, why = "shared memory", "rings are in /dev/shm: a loader without buffer= takes a quarter of what is free"
    try:
        found = os.statvfs(directory)
    except OSError as error:
        fix = "mount -t tmpfs -o size=50% tmpfs /dev/shm"
        return Finding(check, FAILED, f"{directory} cannot be used: {error.strerror}", why, fix)
    size_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    text = f"{format_bytes(free_bytes)} free of {format_bytes(size_bytes)}"
    if not os.access(directory, os.W_OK):
        return Finding(check, FAILED, f"{directory} may not be written to", why, f"chmod 1777 {directory}")
    if size_bytes <= DOCKERS_OWN_BYTES:
        fix = "docker run --shm-size=16g ... (Kubernetes: an emptyDir with medium: Memory at /dev/shm)"
        return Finding(check, FAILED, text, why, fix)
    if size_bytes < SMALL_BYTES:
        return Finding(check, ADVICE, text, why, "mount -o remount,size=50% /dev/shm, or docker run --shm-size=16g")
    if free_bytes < size_bytes // 10:
        return Finding(check, ADVICE, text, why, "ls -lS /dev/shm shows what fills it; `prefetchd evict` frees a ring")
    return Finding(check, OK, text, why)


def cgroup_memory(headroom_bytes: int | None) -> Finding:
    """Checks the cgroup's memory: rings, workers and their page cache count in it."""
    check = "cgroup memory"
    why = "rings and workers count in it; beyond it workers are killed, and a ring that finds no room is refused"
    if headroom_bytes is None:
        return Finding(check, OK, "no limit", why)
    text = f"{format_bytes(headroom_bytes)} left"
    if headroom_bytes < 2 * GIB:
        return Finding(check, ADVICE, text, why, "raise the limit (docker run --memory, MemoryMax=), or lower buffer=")
    return Finding(check, OK, text, why)


def locked_memory(limit_bytes: int) -> Finding:
    """Checks what may be locked: on some drivers, that is what can be pinned without privileges."""
    check, why = "locked memory", "some drivers and RDMA stacks refuse to pin more than that"
    if limit_bytes == resource.RLIM_INFINITY:
        return Finding(check, OK, "no limit", why)
    text = f"limit {format_bytes(limit_bytes)}"
    if not Path(GPU_DEVICE).exists():
        return Finding(check, OK, f"{text}; no GPU here that a ring would be pinned for", why)
    return Finding(check, ADVICE, text, why, "ulimit -l unlimited (docker: --ulimit memlock=-1)")


def ram_disks(mounts: Path) -> Finding:
    """Lists where else a ring, or data, could be in memory."""
    check, why = "RAM disks", "the configuration can put rings and batch files there (store=)"
    try:
        places = mounts_in_memory(mounts)
    except OSError as error:
        return Finding(check, UNKNOWN, f"{mounts}: {error.strerror}", why)
    found = []
    for place, kind in places:
        if place == SHARED_MEMORY:
            continue
        try:
            stat = os.statvfs(place)
        except OSError:
            continue
        if kind == "ramfs" or stat.f_blocks * stat.f_frsize >= GIB:
            size = "no limit" if kind == "ramfs" else format_bytes(stat.f_bavail * stat.f_frsize) + " free"
            found.append(f"{place} ({kind}, {size})")
    return Finding(check, OK, ", ".join(found) or "none of 1 GiB or more besides /dev/shm", why)


def declared_store(directory: str, wanted_bytes: int, mounts: Path) -> Finding:
    """Checks a directory that the configuration names, for streams whose buffers take `wanted_bytes`; 0 where they are
    not given in bytes."""
    check, why = f"store {directory}", "the configuration has rings or batch files there (store=)"
    mount = f"mount -t tmpfs -o size=N tmpfs {directory}"
    try:
        found, kind = os.statvfs(directory), type_of(directory, mounts)
    except OSError as error:
        return Finding(check, FAILED, f"cannot be used: {error.strerror}", why, f"mkdir -p {directory}; {mount}")
    if not os.access(directory, os.W_OK | os.X_OK):
        return Finding(check, FAILED, "may not be written to", why, f"chown {os.geteuid()} {directory}")
    if kind not in IN_MEMORY:
        return Finding(check, ADVICE, f"on {kind}, which is not in memory", why, mount)
    size_bytes = found.f_blocks * found.f_frsize
    if 0 < size_bytes < wanted_bytes:
        text = f"{kind} of {format_bytes(size_bytes)}, for buffers of {format_bytes(wanted_bytes)}"
        return Finding(check, FAILED, text, why, f"mount -o remount,size={wanted_bytes} {directory}, or lower buffer=")
    return Finding(check, OK, f"{kind}, {format_bytes(found.f_bavail * found.f_frsize)} free", why)
