"""Checks this machine's node of a Ray cluster, whose other nodes may make batches: it should leave its CPUs and its
shared memory to the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, Finding
from prefetchd.processes.raylets import raylets
from prefetchd.wire.byte_sizes import format_bytes

LARGE_STORE_BYTES = 4 << 30
"""The object store's size from which on it is said to be large: two batches a remote worker lie in it, and the
program."""
START = "ray start --address=HEAD:6379 --num-cpus=0 --object-store-memory=2000000000"


def findings(address: str, processes: Path = Path("/proc")) -> Iterator[Finding]:
    """Yields what there is to say of Ray on this machine; nothing where none runs, and no cluster's `address` is
    configured."""
    found = [options for _, options in raylets(processes)]
    if found:
        for arguments in found:
            yield cpus(arguments)
            yield object_store(arguments)
    elif address:
        why = "the process that takes batches from other machines reads them from this machine's own object store"
        yield Finding("Ray", FAILED, "this machine is no node of a cluster", why, START)


def cpus(arguments: dict[str, str]) -> Finding:
    """Checks that no actor is started beside the trainer."""
    check, why = "Ray's CPUs", "actors that Ray starts on this machine take the CPUs of workers that are here anyway"
    resources = arguments.get("static_resource_list", "").split(",")
    found = dict(zip(resources[::2], resources[1::2])).get("CPU", "0")
    if float(found) == 0:
        return Finding(check, OK, "none", why)
    return Finding(check, ADVICE, f"{float(found):g} on this machine", why, f"ray stop; {START}")


def object_store(arguments: dict[str, str]) -> Finding:
    """Checks how much memory Ray keeps for objects: by default 30 % of what is free."""
    check, why = "Ray's object store", "it takes its memory from /dev/shm, where rings are; a few batches lie in it"
    size_bytes = int(arguments.get("object_store_memory", "0"))
    text = f"{format_bytes(size_bytes)} in {arguments.get('plasma_directory', 'memory')}"
    if size_bytes < LARGE_STORE_BYTES:
        return Finding(check, OK, text, why)
    return Finding(check, ADVICE, text, why, f"ray stop; {START}")
