"""A pipeline of workers, ring and trainer on a clock of its own, measured as the daemon measures a real one."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from typing import Any

from prefetchd.daemon.engine.history import Counts, History

OBSERVE_EVERY_S = 0.05


@dataclasses.dataclass
class Pipeline:
    """`task_s(step)` is what making a batch takes a worker, `step_s(step)` what the trainer does with it; of a task's
    time `cpu_wait` is spent in line for a CPU, and of the rest `computing` on one; of all of it `collating` in
    collate_fn, and `on_disk` waiting for a disk. After each a worker waits for `handover_s` for another."""

    workers: int
    slots: int
    task_s: Callable[[int], float]
    step_s: Callable[[int], float]
    cpus: int = 64
    cpu_wait: float = 0.0
    computing: float = 0.8
    collating: float = 0.0
    on_disk: float = 0.0
    handover_s: float = 0.0

    def run(self, over_s: float = 60.0) -> dict[str, Any]:
        """A stream of a snapshot, after so long."""
        history = History()
        events: list[tuple[float, int, str, int]] = []
        ready: set[int] = set()
        began: dict[int, float] = {}
        order, claimed, taken, idle = 0, 0, 0, self.workers
        fill_s = stalled_s = longest_s = observed_s = 0.0
        waits_since_s: float | None = 0.0

        def push(at_s: float, what: str, step: int) -> None:
            nonlocal order
            order += 1
            heapq.heappush(events, (at_s, order, what, step))

        push(0.0, "go", 0)
        while events and events[0][0] <= over_s:
            now_s, _, what, step = heapq.heappop(events)
            while observed_s <= now_s:
                used = claimed - taken + (taken > 0)
                waiting_s = observed_s - waits_since_s if waits_since_s is not None else 0.0
                under_way_s = sum(observed_s - each for each in began.values())
                spent_s = fill_s + under_way_s
                counts = Counts(
                    batches=claimed - len(began),
                    samples=claimed - len(began),
                    consumed=taken,
                    fill_s=spent_s,
                    cpu_s=spent_s * (1 - self.cpu_wait) * self.computing,
                    cpu_wait_s=spent_s * self.cpu_wait,
                    process_cpu_s=spent_s * (1 - self.cpu_wait) * self.computing,
                    collating_s=spent_s * self.collating,
                    disk_s=spent_s * self.on_disk,
                    ready_share=len(ready) / self.slots,
                    is_full=bool(ready) and used >= self.slots,
                    workers=self.workers,
                    busy=len(began),
                    consumers=((1, stalled_s + waiting_s),) if taken else (),
                    longest_task_s=longest_s,
                )
                history.observe(counts, observed_s)
                longest_s = 0.0
                observed_s += OBSERVE_EVERY_S
            if what == "made":
                ready.add(step)
                took_s = now_s - began.pop(step)
                fill_s += took_s
                longest_s = max(longest_s, took_s)
                push(now_s + self.handover_s, "idles", 0)
            elif what == "idles":
                idle += 1
            elif what == "wants":
                waits_since_s = now_s
            if waits_since_s is not None and taken in ready:
                stalled_s += now_s - waits_since_s
                waits_since_s = None
                ready.remove(taken)
                push(now_s + self.step_s(taken), "wants", 0)
                taken += 1
            while idle and claimed - taken + (taken > 0) < self.slots:
                idle -= 1
                began[claimed] = now_s
                push(now_s + self.task_s(claimed), "made", claimed)
                claimed += 1
        return {
            "failure": None,
            "one_by_one": True,
            "paused": False,
            "not_ahead": "",
            "store_fault": "",
            "consumers": [{"pid": 1, "departed": False, "waiting_s": 0.0}],
            "workers_asked": 0,
            "workers_limit": self.workers,
            "produced_batches": claimed - len(began),
            "fill_s": fill_s,
            "ring": {"slots": self.slots, "slots_a_batch": 1.0, "ready": 0, "filling": 1},
            "consumed_batches": 1,
            "progress": {"file": ""},
            "paces": history.paces(),
            "recent": history.recent(),
        }
