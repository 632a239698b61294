"""Says which Ray cluster an address means, and whether it may be used: who can submit to a cluster can run code on it,
so one that others on the network reach must ask for a token and encrypt. Pure, but for the file that names the cluster
of this machine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping

from prefetchd.wire.errors import CallerError

AUTO = "auto"
EVERYWHERE = "0.0.0.0:0"
"""Stands for a cluster that is reached from other machines, at whatever address."""
ADDRESS_VARIABLE = "RAY_ADDRESS"
CLUSTER_VARIABLES = ("RAY_", "TMPDIR")
"""The beginnings of the names of variables that the daemon hands to bridges: its starter says how the cluster is
reached, keys and certificates included."""


def resolve_address(address: str, variables: Mapping[str, str]) -> str:
    """Returns HOST:PORT of the cluster; `auto` means $RAY_ADDRESS, or the one that was started on this machine. Raises
    CallerError when there is none."""
    if address == AUTO:
        address = variables.get(ADDRESS_VARIABLE, "")
        if address in ("", AUTO):
            address = _of_this_machine(variables)
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if not host or "/" in host or not is_port:
        raise CallerError(f"ray is {address!r}; allowed: 'auto', or HOST:PORT of the cluster's head")
    return address


def _of_this_machine(variables: Mapping[str, str]) -> str:
    places = [variables.get("RAY_TMPDIR"), variables.get("TMPDIR"), "/tmp"]
    paths = [os.path.join(place, "ray", "ray_current_cluster") for place in places if place]
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                # Anybody may write below /tmp.
                if os.fstat(file.fileno()).st_uid in (0, os.getuid()):
                    return file.read(256).strip()
        except OSError:
            continue
    raise CallerError(
        f"ray is 'auto', and no cluster was started on this machine ({paths[0]} is not there). Set ray to HOST:PORT, "
        "or $RAY_ADDRESS"
    )


def check_security(address: str, variables: Mapping[str, str], *, insecure: bool) -> str:
    """Returns a warning when the cluster at `address` may be used though it is not secure; empty when it is. Raises
    CallerError when it may not."""
    missing = []
    if variables.get("RAY_AUTH_MODE", "").lower() != "token":
        missing.append("token authentication (RAY_AUTH_MODE=token)")
    if variables.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        missing.append("TLS (RAY_USE_TLS=1)")
    if not missing or is_loopback(address):
        return ""
    text = f"the Ray cluster at {address} is reached without {' and '.join(missing)}: who reaches it can run code on it"
    if insecure:
        return text
    raise CallerError(f"{text}. Set these where the daemon and the cluster are started, or say ray_insecure = true")


def is_loopback(address: str) -> bool:
    """Returns True when HOST:PORT can be reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
