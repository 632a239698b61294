"""Says what CPUs of other machines would bring a stream whose workers compute and have no more CPUs here. Pure; the
arithmetic is prefetchd.tuning.remote_gain's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefetchd.diagnosis.rates import Rates
from prefetchd.tuning.remote_gain import filling_s_a_gb, gain, pays


def elsewhere(stream: Mapping[str, Any], rates: Rates) -> str:
    """Returns a sentence about as many CPUs on other machines as there are here, for tasks that compute; empty where
    they would bring little, were asked for already, or could not be used."""
    # An older daemon's snapshot has no such key.
    if stream.get("remote") is not None or stream.get("order") == "iterable":
        return ""
    if rates.workers < rates.cpus or stream.get("store") == "files":
        return ""
    cost = filling_s_a_gb(int(stream.get("fill_s", 0) * rates.computing * 1e6), stream.get("produced_bytes", 0))
    if cost is None or not pays(cost):
        return ""
    cpus = "1 CPU" if rates.cpus == 1 else f"{rates.cpus} CPUs"
    times = gain(cost, rates.cpus, rates.cpus)
    return f". {cpus} of other machines would make {times:.1f} times as much (remote_workers)"
