"""Computes whether remote workers pay: what a batch costs to make, against what it costs to receive. Pure.

A remote worker spares this machine a batch's filling, and costs it the batch's receiving: from the network into the
object store's memory, and from there into the ring. So with `local_cpus` that fill, and `remote_cpus` elsewhere that
are as fast,

    gain = 1 + remote_cpus / local_cpus * (1 - RECEIVING_S_A_GB / filling_s_a_gb)

Where a GB takes less than LEAST_RATIO times what it takes to receive, all stays here: what is gained would not be worth
the network. What receiving takes is learned (receiving_cost); RECEIVING_S_A_GB counts until then.
"""

from __future__ import annotations

RECEIVING_S_A_GB = 2.5
"""CPU seconds to receive a GB that is encrypted, as docs/cluster.md has it: 1.8 to 2.5 were measured, and 1.2 to 1.7
without TLS (docs/performance.md)."""

LEAST_RATIO = 2.2
"""The least ratio of filling to receiving at which remote workers pay."""
LEAST_FILLING_S_A_GB = LEAST_RATIO * RECEIVING_S_A_GB

KNOWN_AFTER_S = 0.5
"""The filling after which it is known what it costs."""


def filling_s_a_gb(fill_us: int, payload_bytes: int) -> float | None:
    """Returns how long workers took to fill a GB of what they filled; None when too little was filled to say so."""
    if fill_us < KNOWN_AFTER_S * 1e6 or payload_bytes <= 0:
        return None
    return (fill_us / 1e6) / (payload_bytes / 1e9)


def pays(filling_s_a_gb: float | None, least_s_a_gb: float = LEAST_FILLING_S_A_GB) -> bool:
    """Returns True when batches that cost so much are worth being made elsewhere; False as long as nobody knows."""
    return filling_s_a_gb is not None and filling_s_a_gb >= least_s_a_gb


def gain(filling_s_a_gb: float, local_cpus: float, remote_cpus: float) -> float:
    """Returns how many times as many batches are made with `remote_cpus` beside `local_cpus`: 1.0 is as many as
    before."""
    return 1.0 + max(0.0, 1.0 - RECEIVING_S_A_GB / filling_s_a_gb) * remote_cpus / max(1.0, local_cpus)
