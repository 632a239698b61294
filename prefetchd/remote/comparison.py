"""Compares two machines: what must be the same on both for a batch to have the same bytes. Pure, but for what it reads
of this machine."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

from prefetchd import __version__
from prefetchd.wire.messages import PROTOCOL_VERSION
from prefetchd.wire.stream_spec import ORDER_VERSION

COMPARED_PACKAGES = ("torch", "torchvision", "numpy", "pillow", "cloudpickle")
"""The packages that decide how samples are decoded, transformed and collated; others that are reached count in the
program's parts."""
MOST_NAMED = 5


def versions_here() -> dict[str, str]:
    """Returns what of this machine's interpreter and packages decides bytes, by name. Imports none of them."""
    found = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "prefetchd": __version__,
        "prefetchd's messages": str(PROTOCOL_VERSION),
        "prefetchd's order": str(ORDER_VERSION),
    }
    for package in COMPARED_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def differences(here: Mapping[str, str], there: Mapping[str, str], node: str) -> str:
    """Says in one line what differs between this machine and `node`; empty when nothing does."""
    names = [name for name in sorted({*here, *there}) if here.get(name, "none") != there.get(name, "none")]
    named = [f"{name}: {here.get(name, 'none')} here, {there.get(name, 'none')} on {node}" for name in names]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return "; ".join(named[:MOST_NAMED]) + more


def processor_here() -> str:
    """Returns the name of this machine's processor, or what kind it is."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model"):
                    return value.strip()
    except OSError:
        pass
    return platform.machine()
