"""Other machines in the world for the pure engine: bridges and remote workers as plain data, every step chosen by the
test. What a bridge writes and what it tells are two steps, so that it may die in between."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from prefetchd.daemon.engine import commands as c
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.messages import (
    Filled,
    FillFailed,
    FillRemote,
    Revoke,
    Spent,
    StartRemote,
    StopRemote,
    Unfit,
)

if TYPE_CHECKING:
    from tests.property.world import World

NODES = ("one", "two")


@dataclasses.dataclass
class SimTask:
    task: FillTask
    worker: int
    is_written: bool = False
    is_revoked: bool = False


@dataclasses.dataclass
class SimBridge:
    """`told` are messages of the daemon that it has not read yet."""

    number: int
    stream: int
    is_open: bool = False
    has_ring: bool = False
    told: list = dataclasses.field(default_factory=list)
    workers: dict[int, str] = dataclasses.field(default_factory=dict)
    tasks: list[SimTask] = dataclasses.field(default_factory=list)


class RemoteWorld:
    """The bridges of one daemon. `odd_nodes` make other batches than workers here."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bridges: dict[int, SimBridge] = {}
        self.odd_nodes: frozenset[str] = frozenset()
        # What a sampler has decided, by the numbers of remote tasks.
        self.keys: dict[int, bytes] = {}
        self.made = 0
        self.taken_back = 0
        self.compared = 0

    def run(self, command) -> None:
        match command:
            case c.OpenBridge(stream, bridge):
                assert self.world.engine.streams[stream].has_program, "there is nothing to take to another machine"
                self.bridges[bridge] = SimBridge(bridge, stream)
            case c.CloseBridge(bridge):
                del self.bridges[bridge]
            case c.LendRingTo(bridge, stream):
                assert self.bridges[bridge].stream == stream
                self.bridges[bridge].has_ring = True
            case c.TellBridge(bridge, message):
                assert self.bridges[bridge].is_open
                self.bridges[bridge].told.append(message)

    def steps(self) -> list:
        """All that can happen next, each as a function."""
        found = []
        for bridge in self.bridges.values():
            if not bridge.is_open:
                found.append(lambda bridge=bridge: self._open(bridge))
            if bridge.told:
                found.append(lambda bridge=bridge: self._hear(bridge))
            for worker, node in bridge.workers.items():
                if not node:
                    found.append(lambda bridge=bridge, worker=worker: self._come(bridge, worker))
            # A worker does one task after another.
            for worker in bridge.workers:
                first = next((each for each in bridge.tasks if each.worker == worker), None)
                if first is not None:
                    found.append(lambda bridge=bridge, first=first: self._work(bridge, first))
        return found

    def step(self, index: int) -> None:
        steps = self.steps()
        steps[index % len(steps)]()
        self.world.run()

    def reach(self) -> None:
        """Bridges reach their cluster, and hear what they are told."""
        for bridge in list(self.bridges.values()):
            if not bridge.is_open:
                self._open(bridge)
                self.world.run()
            while bridge.told:
                self._hear(bridge)
                self.world.run()

    def arrive(self) -> None:
        """As reach(), and workers come; nothing is made."""
        self.reach()
        for bridge in list(self.bridges.values()):
            for worker in [worker for worker, node in bridge.workers.items() if not node]:
                self._come(bridge, worker)
                self.world.run()

    def work_off(self, bridge: SimBridge, given: SimTask) -> None:
        """The task comes to its end, as far as the bridge still has it."""
        while given in bridge.tasks:
            self._work(bridge, given)
            self.world.run()

    def _open(self, bridge: SimBridge) -> None:
        bridge.is_open = True
        self.world.engine.bridge_ready(bridge.number)

    def _come(self, bridge: SimBridge, worker: int) -> None:
        assert bridge.has_ring
        node = bridge.workers[worker] = NODES[worker % len(NODES)]
        self.world.engine.remote_ready(worker, node, "a processor")

    def _hear(self, bridge: SimBridge) -> None:
        match bridge.told.pop(0):
            case StartRemote(workers):
                bridge.workers |= dict.fromkeys(workers, "")
            case StopRemote(worker):
                self.lose(bridge, worker, "")
            case FillRemote(worker, tasks, keys):
                if worker in bridge.workers:
                    bridge.tasks += [SimTask(FillTask.from_row(row), worker) for row in tasks]
                    self.keys.update({row[0]: its for row, its in zip(tasks, keys)})
            case Revoke(number):
                for each in bridge.tasks:
                    if each.task.number == number and not each.is_written:
                        each.is_revoked = True
                        self.taken_back += 1
                        self.world.engine.remote_revoked(bridge.number, number)
            case message:
                raise AssertionError(message)

    def _work(self, bridge: SimBridge, given: SimTask) -> None:
        world, task = self.world, given.task
        position = task.position
        if given.is_revoked:
            bridge.tasks.remove(given)
            world.engine.remote_late(given.worker, task.number)
            return
        if position in world.killing:
            # The actor lives on, and says that this is not for it.
            answer = Spent(task.number)
        elif position in world.failing:
            answer = FillFailed(task.number, b"bad sample")
        elif position in world.deviating and task.kind == 1:
            answer = Unfit.deviating(task.number, "dtype")
        elif task.kind == 2 and world.sizes.get(position, 100) > 100:
            answer = Unfit.needing(task.number, world.sizes[position])
        elif not given.is_written:
            given.is_written = True
            self._write(bridge, given)
            return
        else:
            self.made += 1
            answer = Filled(((task.number, 100, 1000, task.rows),))
        bridge.tasks.remove(given)
        world.engine.remote_message(given.worker, answer, 100, world.now)

    def _write(self, bridge: SimBridge, given: SimTask) -> None:
        world, task = self.world, given.task
        found = world.memory[bridge.stream][task.slot]
        assert found["position"] == task.position, f"a bridge writes {task.position} into a slot of {found['position']}"
        content = world.content(task.number, task.position, self.keys)
        if bridge.workers[given.worker] in self.odd_nodes:
            content = ("otherwise", content)
        found["rows"].update(dict.fromkeys(range(task.rows), content))

    # --- what goes wrong ---

    def lose(self, bridge: SimBridge, worker: int, reason: str) -> None:
        """The worker ends, with what it has."""
        bridge.workers.pop(worker, None)
        bridge.tasks = [each for each in bridge.tasks if each.worker != worker]
        self.world.engine.remote_ended(worker, reason, is_final=False)

    def lose_worker(self, index: int) -> None:
        all_of = [(bridge, worker) for bridge in self.bridges.values() for worker in bridge.workers]
        self.lose(*all_of[index % len(all_of)], "its node is gone")
        self.world.run()

    def kill_bridge(self, index: int) -> None:
        number = sorted(self.bridges)[index % len(self.bridges)]
        del self.bridges[number]
        self.world.engine.bridge_ended(number, "killed", is_final=False)
        self.world.run()
