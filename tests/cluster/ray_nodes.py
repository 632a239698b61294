"""A Ray cluster on this machine, in a network of its own that nothing leaves."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

CLONE_NEWNET, CLONE_NEWNS, CLONE_FS = 0x40000000, 0x00020000, 0x00000200
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
STORE_BYTES = 80 << 20
CPUS_A_NODE = 2


def enter_a_network_of_its_own() -> str:
    """Puts this process, and all that it starts from here on, into a network that has a loopback and nothing else.
    Returns why that cannot be; empty when it is so."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        return f"no network of its own can be had: {os.strerror(ctypes.get_errno())}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        (flags,) = struct.unpack_from("h", request, 16)
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    return ""


class RayNodes:
    """The cluster: its head, which has no CPUs, as the trainer's machine has none, and nodes that have some."""

    def __init__(self, cluster: Any, store_bytes: int) -> None:
        self._cluster = cluster
        self._store_bytes = store_bytes
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def raylet(self) -> int:
        """The pid of the raylet of the head's machine, which is the trainer's."""
        (found,) = self._cluster.head_node.all_processes["raylet"]
        return int(found.process.pid)

    def add(self, cpus: int = CPUS_A_NODE, **options: Any) -> None:
        """Brings one more node, on those CPUs that this process may use by now."""
        self.nodes.append(self._cluster.add_node(num_cpus=cpus, object_store_memory=self._store_bytes, **options))

    def add_with(self, there: Path, in_place_of: Path, cpus: int = CPUS_A_NODE) -> None:
        """Brings one more node, which sees the directory `there` where this machine has `in_place_of`."""

        libc, directory = ctypes.CDLL(None, use_errno=True), os.getcwd()
        here = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # This thread's, and its children's.
            if libc.unshare(CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "no mount namespace of its own can be had")
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "--bind", str(there), str(in_place_of)], check=True)
            self.add(cpus)
        finally:
            # Threads that Ray has started here share this one's directories, with which no other namespace is entered.
            if libc.unshare(CLONE_FS) or libc.setns(here, CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "the mount namespace cannot be left")
            os.close(here)
            os.chdir(directory)

    def remove(self) -> None:
        """Takes the last node away, as if its machine were switched off."""
        self._cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    @staticmethod
    def actors() -> list[psutil.Process]:
        """The processes of living actors."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and "FillActor" in " ".join(process.cmdline()[:1]):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextlib.contextmanager
def ray_cluster(nodes: int, store_bytes: int = STORE_BYTES) -> Iterator[RayNodes]:
    """A cluster with so many nodes beside its head, each with such an object store. Takes a quarter of a minute to
    come up."""
    before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "RAY_DISABLE_MEMORY_MONITOR")}
    with tempfile.TemporaryDirectory(prefix="pf-ray-", dir="/tmp") as directory:
        # Sockets' names below it are to stay short.
        os.environ.update(RAY_TMPDIR=directory, RAY_DISABLE_MEMORY_MONITOR="1")
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": store_bytes, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        found = RayNodes(cluster, store_bytes)
        try:
            for _ in range(nodes):
                found.add()
            yield found
        finally:
            cluster.shutdown()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
