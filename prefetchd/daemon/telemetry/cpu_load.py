"""Measures who uses the CPUs that this daemon may use: its own processes, its trainers, or others of the machine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable

from prefetchd.daemon.telemetry.cpu_times import TICK_S, cpu_times
from prefetchd.wire.records import record

OVER_S = 10.0
"""The span that is told of: long enough for an average, and short enough to notice who has come or gone."""
STAT = "/proc/stat"


@record
class _Look:
    at_s: float
    busy_s: float
    own_s: float
    trainers_s: float


class CpuLoad:
    """Keeps who has used the CPUs in the last OVER_S seconds. Time that a hypervisor gave to other machines counts as
    used."""

    def __init__(self, cpus: frozenset[int] | None = None, stat: str = STAT) -> None:
        self._names = {b"cpu%d" % cpu for cpu in (cpus if cpus is not None else os.sched_getaffinity(0))}
        self._stat = stat
        self._looks: deque[_Look] = deque()
        self._times_s: dict[int, float] = {}
        self._own_s = self._trainers_s = 0.0

    def observe(self, now_s: float, own: Iterable[int], trainers: Iterable[int]) -> None:
        """Looks at the CPUs, and at the processes with the pids `own` and `trainers`. To be called about once a
        second."""
        busy_s = self._busy_s()
        times_s: dict[int, float] = {}
        own = set(own)
        self._own_s += self._since(own, times_s)
        self._trainers_s += self._since(set(trainers) - own, times_s)
        self._times_s = times_s
        if busy_s is None:
            return
        self._looks.append(_Look(now_s, busy_s, self._own_s, self._trainers_s))
        while len(self._looks) > 2 and now_s - self._looks[1].at_s >= OVER_S:
            self._looks.popleft()

    def about(self) -> dict[str, float] | None:
        """Returns how many CPUs were used on average: all together, by the daemon's own processes, by trainers and by
        others. None until a span has passed."""
        if len(self._looks) < 2:
            return None
        begin, end = self._looks[0], self._looks[-1]
        over_s = end.at_s - begin.at_s
        busy = (end.busy_s - begin.busy_s) / over_s
        own = (end.own_s - begin.own_s) / over_s
        trainers = (end.trainers_s - begin.trainers_s) / over_s
        return {
            "over_s": over_s,
            "cpus": float(len(self._names)),
            "busy": busy,
            "own": own,
            "trainers": trainers,
            "others": max(0.0, busy - own - trainers),
        }

    def _since(self, pids: set[int], times_s: dict[int, float]) -> float:
        """Returns what these processes have used since the last look; what one had used before its first look is not
        known to lie in the span."""
        used_s = 0.0
        for pid in pids:
            found = cpu_times(pid)
            if found is not None:
                times_s[pid] = found.process_s
                used_s += max(0.0, found.process_s - self._times_s.get(pid, found.process_s))
        return used_s

    def _busy_s(self) -> float | None:
        """Returns for how long our CPUs have not been idle; waiting for a disk is idling. None where nobody counts."""
        busy = 0
        try:
            with open(self._stat, "rb") as file:
                for line in file:
                    name, *fields = line.split()
                    if not name.startswith(b"cpu"):
                        break
                    if name in self._names:
                        # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
                        ticks = [int(each) for each in fields[:8]]
                        busy += sum(ticks) - ticks[3] - ticks[4]
        except (OSError, ValueError, IndexError):
            return None
        return busy * TICK_S
