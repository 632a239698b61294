"""Steering decides what is killed next: points that were hit rarely first, expensive deaths seldom, everything else by
chance."""

from __future__ import annotations

import dataclasses
import fnmatch
import random
from collections import Counter

from prefetchd.kill_points.kill_point_table import POINTS

EXPENSIVE = 0.15
"""The largest share of kills out of which a zygote has to import torch again; unless too few points would be hit."""
AT_RANDOM = 0.05
"""The share of kills at no point, but at a random time."""
SPARE = 0.03
"""The share of all kills that is kept for orders in vain: with no more left than that and what the missing hits take,
none is made at a random time."""

# What brings a process to a point; by the first pattern that matches. The rest is passed with every batch.
STIMULI = {
    "daemon.stop.*": "stop the daemon",
    "daemon.close.*": "stop the daemon",
    "daemon.keep.*": "have the daemon keep its rings",
    "daemon.start.*": "kill the daemon",
    "daemon.adopt.*": "kill the daemon",
    "client.daemon.*": "kill the daemon",
    "client.return.*": "kill the daemon",
    "env.preloaded": "kill the env",
    "env.*": "kill a zygote",
    "zygote.forked": "new loader",
    "zygote.introduced": "new loaders without a daemon",
    "zygote.daemon.gone": "kill the daemon",
    "zygote.handed.on": "kill the daemon",
    "zygote.started": "kill a zygote",
    "zygote.loaded": "kill a zygote",
    "zygote.*": "kill a worker",
    "worker.started": "kill a worker",
    "worker.initialised": "kill a worker",
    "worker.ring.*": "kill a worker",
    "planner.started": "kill a planner",
    "daemon.death.*": "kill a worker",
    "daemon.drop.*": "fresh loader",
    "daemon.program.*": "fresh loader",
    "daemon.fork.heard": "new loader",
    "daemon.fork.*": "fresh loader",
    "daemon.ring.*": "fresh loader",
    "client.program.*": "fresh loader",
    "client.fork.*": "new loader",
    "worker.measured": "fresh loader",
    "daemon.files.*": "kill the daemon",
    "daemon.record.unchained": "fresh loader of long batches",
    "daemon.record.chained": "fresh loader of long batches",
    "client.plan.*": "break off the reseeded",
    "client.cursor.begun": "break off",
    "daemon.hello.*": "new loader",
    "daemon.session.*": "new loader",
    "client.hello.*": "new loader",
    "client.ring.*": "new loader",
    "client.close.*": "new loader",
    "client.cursor.closed": "break off",
}

# Who is started again so slowly that, after a death, an order to such a point can still be placed.
SLOW_STARTERS = {"daemon": "*", "env": "*", "worker": "worker.*"}

DEAR_STIMULI = {
    "kill the daemon",
    "stop the daemon",
    "have the daemon keep its rings",
    "kill the env",
    "new loaders without a daemon",
}
DEAR_ROLES = {"daemon", "env"}

# Several deaths of this kind in a row, with nothing done in between, are an error by design.
STARTING = (
    "env.*",
    "zygote.*",
    "worker.started",
    "worker.initialised",
    "planner.*",
    "daemon.start.*",
    "daemon.adopt.*",
)

MOST_PASSINGS = {
    "daemon.record.unchained": 1,
    "daemon.record.chained": 1,
    "worker.row.written": 9,
    "daemon.message.heard": 5,
    "daemon.record.*": 4,
    "worker.*": 3,
}


@dataclasses.dataclass(frozen=True)
class Order:
    """Orders a kill of whoever passes `point` for the `nth` time, after `stimulus` (empty: batches will do)."""

    point: str
    nth: int
    stimulus: str

    @property
    def is_dear(self) -> bool:
        return self.stimulus in DEAR_STIMULI or self.point.split(".")[0] in DEAR_ROLES


class Steering:
    """Gives one order after the other. `wanted` is how often each point is to be hit, in a run of `kills` kills."""

    def __init__(self, dice: random.Random, kills: int, wanted: int) -> None:
        self._dice = dice
        self._kills = kills
        self._wanted = wanted
        self._in_vain: Counter[str] = Counter()
        self._starts_in_a_row = 0

    def next_order(self, hits: Counter[str], kills: int, dear_kills: int) -> Order | None:
        """Returns the next order; None is a kill at a random time."""
        missing = {point: self._wanted - hits[point] for point in POINTS if hits[point] < self._wanted}
        # A stimulus may be a kill, too.
        needed = sum(more * (1 + _matching(point, STIMULI, "").startswith("kill")) for point, more in missing.items())
        urgent = bool(missing) and needed >= self._kills - kills - SPARE * self._kills
        if not urgent and self._dice.random() < AT_RANDOM:
            return None
        orders = [_order(point, self._dice) for point in missing or POINTS]
        dear_needed = sum(missing.get(each.point, 0) for each in orders if each.is_dear)
        share = max(EXPENSIVE, dear_needed / max(1, self._kills - kills))
        dear = dear_kills <= share * kills
        possible = [each for each in orders if not self._is_too_much(each.point)]
        fitting = [each for each in possible if each.is_dear == dear] or (possible if urgent else [])
        if not fitting:
            return None
        # The rarest first, but what was ordered in vain waits longer.
        rarity = {each: hits[each.point] + 2 * self._in_vain[each.point] for each in fitting}
        rarest = min(rarity.values())
        return self._dice.choice([each for each in fitting if rarity[each] == rarest])

    def following(self, hits: Counter[str], killed: str) -> Order | None:
        """Returns an order to which the death at the point `killed` is the stimulus: a kill saved. Returns None when
        such an order would be to no point that is still to be hit."""
        role = killed.split(".")[0]
        slow = fnmatch.filter(POINTS, SLOW_STARTERS.get(role, ""))
        orders = [_order(point, self._dice) for point in slow if hits[point] < self._wanted]
        fitting = [each for each in orders if each.stimulus in (f"kill the {role}", f"kill a {role}")]
        fitting = [each for each in fitting if not self._is_too_much(each.point)]
        if not fitting:
            return None
        rarest = min(fitting, key=lambda each: hits[each.point] + 2 * self._in_vain[each.point])
        return dataclasses.replace(rarest, stimulus="")

    def tell(self, point: str, *, hit: bool) -> None:
        """Takes what became of the order."""
        if not hit:
            self._in_vain[point] += 1
        self._starts_in_a_row = self._starts_in_a_row + 1 if hit and _is_start(point) else 0

    def _is_too_much(self, point: str) -> bool:
        return _is_start(point) and self._starts_in_a_row >= 2


def _order(point: str, dice: random.Random) -> Order:
    stimulus = _matching(point, STIMULI, "")
    nth = 1 if stimulus else dice.randint(1, _matching(point, MOST_PASSINGS, 2))
    return Order(point, nth, stimulus)


def _is_start(point: str) -> bool:
    return any(fnmatch.fnmatchcase(point, each) for each in STARTING)


def _matching(point: str, table: dict, default):  # type: ignore[no-untyped-def, type-arg]
    return next((value for pattern, value in table.items() if fnmatch.fnmatchcase(point, pattern)), default)
