"""Where do remote workers end to help? On paper: the real engine; workers, machines and the network are numbers.

python -m benchmarks.remote_simulation [--trainers N] [--cpus N] [--remote-cpus N ...] [--gb-s RATE] [--seconds N]

One machine with so many trainers and CPUs takes batches from so many CPUs elsewhere, through a network that carries
--gb-s. A batch is --mb large and costs --cpu-s of one CPU; a trainer takes one each --step-s, or as soon as it is
there. What Ray adds to each (a call, an object, its way through the object store) is --ray-ms, and this machine pays
--receiving-s of CPU for each GB, out of the CPUs that its own workers have. For each number of remote CPUs: what the
trainers get together, what bounds that by arithmetic, and the CPU time of the engine for a batch, which is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import random
import time
from collections.abc import Callable

from prefetchd.tuning.remote_gain import RECEIVING_S_A_GB
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.remote_world import SimBridge, SimTask
from tests.property.world import SimTrainer, SimWorker, World

STEPS = 1 << 20
WARM_SHARE = 0.4
"""The share of the time that is not counted: remote workers come when batches have been made here."""


@dataclasses.dataclass(frozen=True)
class Place:
    """What is to be simulated: the command line's numbers."""

    trainers: int
    cpus: int
    gb_s: float
    mb: float
    cpu_s: float
    step_s: float
    ray_ms: float
    receiving_s: float
    slots: int

    @property
    def wanted(self) -> float:
        """What all trainers together would take, in batches a second."""
        return self.trainers / self.step_s

    def bound(self, remote_cpus: int) -> float:
        """Returns what all CPUs and the network could give in batches a second."""
        gb = self.mb / 1000
        carried = min(remote_cpus / self.cpu_s, self.gb_s / gb)
        here = max(0.0, self.cpus - carried * gb * self.receiving_s) / self.cpu_s
        return min(self.wanted, carried + here)


class QuietWorld(World):
    """The engine's world without its laws: they would take most of the time, and tests look after them."""

    def check(self) -> None:
        pass


class Simulation:
    """One machine, for so many seconds of its own time."""

    def __init__(self, place: Place, remote_cpus: int, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._chance = random.Random(7)
        self._now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._net_free = 0.0
        self._receiving = 0.0
        self._began: set[int] = set()
        self._waiting: set[int] = set()
        self._counted = 0
        self.engine_s = 0.0
        self._world = QuietWorld(place.cpus, place.slots, remote=True)
        self._world.task_us = lambda stream, rows: int(1e6 * place.cpu_s)
        local = max(1, place.cpus // place.trainers)
        remote = remote_cpus // place.trainers
        self._trainers = []
        for number in range(place.trainers):
            spec = StreamSpec(f"{number:032x}", 0, "sequential", STEPS, 1, workers=local, remote_workers=remote)
            trainer = self._world.join(spec, f"trainer {number}")
            trainer.place(1, 0, 0, False)
            self._trainers.append(trainer)

    def run(self) -> float:
        """Returns the batches a second that all trainers got after the first part of the time."""
        for trainer in self._trainers:
            self._at(self._chance.random() * self._place.step_s, lambda trainer=trainer: self._takes(trainer))
        self._at(0.0, self._ticks)
        self._look()
        while self._events and self._now < self._seconds:
            self._now, _, happens = heapq.heappop(self._events)
            self._world.now = self._now
            began_s = time.process_time()
            happens()
            self._look()
            self.engine_s += time.process_time() - began_s
        return self._counted / (self._seconds * (1 - WARM_SHARE))

    @property
    def batches(self) -> int:
        return sum(each.counters.batches for each in self._world.engine.streams.values())

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def _ticks(self) -> None:
        self._world.tick()
        self._at(self._now + 0.25, self._ticks)

    def _takes(self, trainer: SimTrainer) -> None:
        if not trainer.can_next(1):
            self._waiting.add(trainer.session)
            trainer.wait(1)
            return
        self._waiting.discard(trainer.session)
        trainer.next(1, hold=False)
        if self._now > WARM_SHARE * self._seconds:
            self._counted += 1
        self._at(self._now + self._place.step_s, lambda: self._takes(trainer))

    def _look(self) -> None:
        """Begins what can begin by now."""
        world = self._world
        while world.pending:
            world.deliver(0)
        world.remote.arrive()
        for worker in list(world.workers.values()):
            if worker.tasks and worker.number not in self._began:
                self._began.add(worker.number)
                # What receiving takes of the CPUs, workers here do not have.
                share = max(0.2, 1 - self._receiving / self._place.cpus)
                took_s = self._place.cpu_s * worker.tasks[0].rows * self._jitter() / share
                self._at(self._now + took_s, lambda worker=worker: self._made_here(worker))
        for bridge in world.remote.bridges.values():
            busy = set()
            for task in bridge.tasks:
                if task.worker not in busy and -task.task.number not in self._began:
                    self._began.add(-task.task.number)
                    took_s = self._place.cpu_s * self._jitter() + self._place.ray_ms / 1000
                    self._at(self._now + took_s, lambda bridge=bridge, task=task: self._sent(bridge, task))
                busy.add(task.worker)
        for trainer in self._trainers:
            if trainer.session in self._waiting and trainer.can_next(1):
                self._takes(trainer)

    def _jitter(self) -> float:
        return self._chance.uniform(0.8, 1.2)

    def _made_here(self, worker: SimWorker) -> None:
        self._began.discard(worker.number)
        busy = [each for each in self._world.workers.values() if each.tasks]
        if worker in busy:
            self._world.work(busy.index(worker))

    def _sent(self, bridge: SimBridge, task: SimTask) -> None:
        """The batch goes through the network, one after another."""
        gb = self._place.mb / 1000
        self._net_free = max(self._now, self._net_free) + gb / self._place.gb_s
        self._receiving += 0.1 * (gb * self._place.receiving_s * self.rate_elsewhere - self._receiving)
        self._at(self._net_free, lambda: self._came(bridge, task))

    @property
    def rate_elsewhere(self) -> float:
        return self._world.remote.made / max(self._now, 1.0)

    def _came(self, bridge: SimBridge, task: SimTask) -> None:
        if task in bridge.tasks and bridge.number in self._world.remote.bridges:
            self._world.remote.work_off(bridge, task)
        self._began.discard(-task.task.number)


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").split("\n\n")[0].split()))
    parser.add_argument("--trainers", type=int, default=8, help="on this machine")
    parser.add_argument("--cpus", type=int, default=64, help="of this machine, that fill")
    parser.add_argument("--remote-cpus", type=int, nargs="+", default=[0, 16, 32, 64, 128, 256])
    parser.add_argument("--gb-s", type=float, default=3.0)
    parser.add_argument("--mb", type=float, default=38.5, help="256 pictures of 224 x 224 bytes")
    parser.add_argument("--cpu-s", type=float, default=1.3, help="256 pictures at 5 ms")
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--ray-ms", type=float, default=10.0)
    parser.add_argument("--receiving-s", type=float, default=RECEIVING_S_A_GB)
    parser.add_argument("--slots", type=int, default=96, help="of each ring")
    parser.add_argument("--seconds", type=float, default=120.0)
    found = vars(parser.parse_args())
    remote, seconds = found.pop("remote_cpus"), found.pop("seconds")
    place = Place(**found)
    print(f"{place.trainers} trainers want {place.wanted:.0f} batches/s of {place.mb:g} MB")
    print(f"{'remote CPUs':>12} {'batches/s':>10} {'bound':>8} {'share':>6} {'engine, us a batch':>19}")
    for cpus in remote:
        simulation = Simulation(place, cpus, seconds)
        rate, bound = simulation.run(), place.bound(cpus)
        engine_us = 1e6 * simulation.engine_s / max(1, simulation.batches)
        print(f"{cpus:12} {rate:10.1f} {bound:8.1f} {rate / bound:6.0%} {engine_us:19.0f}", flush=True)


if __name__ == "__main__":
    main()
