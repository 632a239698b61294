"""Places remote workers on actors: an actor has a few workers of one node, which share its zygote and its program.
Pure.

1. Workers that have no place yet are placed together, CPUS_AN_ACTOR on an actor at most, where nodes have CPUs free.
   Those that find none wait for actors that are as large as the largest node allows: Ray never starts an actor that
   fits nowhere. While no node is known an actor has one.
2. A place that is given back is not used again: an actor ends with its last worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

CPUS_AN_ACTOR = 4
"""A zygote, its program and Ray's own process are there once for all workers of an actor. Measured: 122 MB a worker, 87
of one beside the daemon (docs/performance.md)."""


@dataclasses.dataclass(eq=False)
class Actor:
    """An actor, as Ray's `handle`, and the lane of each of its `workers`, by number; whether its process `is_there`."""

    handle: Any = None
    workers: dict[int, int] = dataclasses.field(default_factory=dict)
    is_there: bool = False


class Placement:
    """Knows which worker is a lane of which actor."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._actors: list[Actor] = []

    def want(self, workers: Iterable[int]) -> None:
        """Notes that workers want places."""
        self._waiting.extend(workers)

    def sizes(self, free_cpus: Sequence[int], largest_node_cpus: int) -> list[int]:
        """Returns how many lanes the actors are to have on which all that wait find a place (rule 1). `free_cpus` has
        the free CPUs of each node."""
        waiting, found, left = len(self._waiting), [], list(free_cpus)
        while waiting and max(left, default=0) > 0:
            node = left.index(max(left))
            lanes = min(CPUS_AN_ACTOR, left[node], waiting)
            found.append(lanes)
            left[node] -= lanes
            waiting -= lanes
        most = max(1, min(CPUS_AN_ACTOR, largest_node_cpus))
        whole, rest = divmod(waiting, most)
        return found + [most] * whole + ([rest] if rest else [])

    def add(self, lanes: int) -> Actor:
        """Makes an actor of so many lanes, for those that have waited longest."""
        placed, self._waiting = self._waiting[:lanes], self._waiting[lanes:]
        actor = Actor(workers={worker: lane for lane, worker in enumerate(placed)})
        self._actors.append(actor)
        return actor

    def place_of(self, worker: int) -> tuple[Actor, int] | None:
        """Returns the worker's actor and lane; None when it has none."""
        for actor in self._actors:
            if worker in actor.workers:
                return actor, actor.workers[worker]
        return None

    def leave(self, worker: int) -> Actor | None:
        """Gives the worker's place up. Returns its actor, if it had one."""
        if worker in self._waiting:
            self._waiting.remove(worker)
            return None
        found = self.place_of(worker)
        if found is None:
            return None
        actor, _ = found
        del actor.workers[worker]
        return actor

    def remove(self, actor: Actor) -> None:
        """Forgets an actor that has ended."""
        if actor in self._actors:
            self._actors.remove(actor)
