"""A cluster that takes nobody without its token and a certificate of its authority, at an address that is no loopback's
by its number."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.cluster.ray_nodes import STORE_BYTES
from tests.scenario.waiting import until

ADDRESS, PORT = "10.77.0.1", 6380
SCRIPT = Path(__file__).parents[2] / "examples" / "cluster" / "make_certificates.sh"
SIOCSIFADDR = 0x8916


def add_address() -> None:
    """Gives the loopback of this network one more address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(sock, SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))


def make_certificates(directory: Path) -> dict[str, str]:
    """Variables that name an authority's certificate and one of this address that it has signed, made by the script
    that docs/cluster.md names."""
    subprocess.run(["sh", str(SCRIPT), ADDRESS], cwd=directory, check=True, capture_output=True)
    names = {"CA_CERT": "ca.crt", "SERVER_CERT": f"{ADDRESS}.crt", "SERVER_KEY": f"{ADDRESS}.key"}
    files = {f"RAY_TLS_{name}": str(directory / file) for name, file in names.items()}
    return files | {"RAY_USE_TLS": "1", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextlib.contextmanager
def secured_cluster(variables: dict[str, str], directory: Path) -> Iterator[str]:
    """Starts it as a person would; the address of its head, which has two CPUs."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--include-dashboard=false"]
    command += [f"--node-ip-address={ADDRESS}", f"--port={PORT}", "--num-cpus=2", "--disable-usage-stats"]
    environment = os.environ | variables | {"RAY_TMPDIR": str(directory)}
    with open(directory / "printed", "wb") as printed:
        head = subprocess.Popen(
            [*command, f"--object-store-memory={STORE_BYTES}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
        )
    try:
        until(lambda: b"Ray runtime started." in (directory / "printed").read_bytes(), "the head runs", 90)
        yield f"{ADDRESS}:{PORT}"
    finally:
        processes = psutil.Process(head.pid).children(recursive=True)
        head.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(processes, timeout=20)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=20)
        head.wait(20)
