"""Learns what a GB costs to receive from what bridges and this machine's raylet have used. Pure.

The raylet serves all bridges of the machine, and each bridge reports all that it has used so far. So the daemon counts
what it has used since the last report of any bridge, and the bytes of all of them. A report of few bytes is left out:
what processes use that wait would count as the cost of these.
"""

from __future__ import annotations

from prefetchd.tuning.remote_gain import LEAST_RATIO, RECEIVING_S_A_GB

KNOWN_AFTER_BYTES = 2 << 30
"""The first bytes cost more: memory is touched for the first time. Of 270 MB 4.4 s a GB were counted where it was 2 s
later."""
MOST_S_A_GB = 3.5
"""What may be learned at most: remote workers that were given up for a wrong figure would bring no better one."""
LEAST_BYTES = 64 << 20
"""The bytes of a report, of five seconds, from which on it counts."""
WINDOW_BYTES = 8 << 30
"""The bytes after which what was measured before counts half."""


class ReceivingCost:
    """The CPU seconds a GB of one daemon's bridges and raylet."""

    def __init__(self) -> None:
        self._cpu_us = 0.0
        self._bytes = 0.0
        self._raylet_us: int | None = None
        self._is_known = False

    def used(self, received_bytes: int, bridge_us: int, raylet_us: int) -> None:
        """Take a bridge's report: what it has received and used since its last one, and what the raylet has used since
        that began (0: unknown)."""
        former, self._raylet_us = self._raylet_us, raylet_us or None
        if received_bytes < LEAST_BYTES:
            return
        if former is not None and raylet_us >= former:
            self._cpu_us += raylet_us - former
        self._cpu_us += bridge_us
        self._bytes += received_bytes
        self._is_known = self._is_known or self._bytes >= KNOWN_AFTER_BYTES
        if self._bytes > WINDOW_BYTES:
            self._cpu_us, self._bytes = self._cpu_us / 2, self._bytes / 2

    @property
    def learned_s_a_gb(self) -> float | None:
        """The CPU seconds to receive a GB; None as long as too little was received to say so."""
        return min(MOST_S_A_GB, (self._cpu_us / 1e6) / (self._bytes / 1e9)) if self._is_known else None

    @property
    def least_filling_s_a_gb(self) -> float:
        """The CPU seconds to fill a GB from which on remote workers pay."""
        learned = self.learned_s_a_gb
        return LEAST_RATIO * (RECEIVING_S_A_GB if learned is None else learned)
