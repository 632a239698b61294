"""A stage of the backends' contract whose workers are on a cluster's nodes."""

from __future__ import annotations

import os
from typing import Any

from prefetchd.supervisor.bridges import Bridges
from prefetchd.wire.messages import FillRemote, Measured, Message, StartRemote
from prefetchd.wire.runtime_paths import RuntimePaths
from tests.contract.backend_harness import HarnessedStream, Stage, Told, new_number

DEADLINE_S = 120.0


class ToldByBridges(Told):
    """Has what remote workers answer as what workers do."""

    def remote_message(self, worker: int, message: Message, transfer_us: int) -> None:
        self.worker_message(worker, message)


class RemoteStage(Stage):
    """Beside the bridges there is a backend of this machine, which measures, as the daemon's does."""

    def __init__(self, address: str, paths: RuntimePaths) -> None:
        super().__init__("executed", paths, ToldByBridges(), deadline_s=DEADLINE_S)
        self.bridges = Bridges(self.loop, self.told, address, insecure=False)

    def stream(self, dataset: Any, **options: Any) -> RemoteStream:
        return RemoteStream(self, dataset, **options)

    def close(self) -> None:
        self.bridges.close()
        super().close()


class RemoteStream(HarnessedStream):
    """A stream whose workers are remote ones."""

    def __init__(self, stage: RemoteStage, dataset: Any, **options: Any) -> None:
        self._bridges, self._bridge = stage.bridges, new_number()
        super().__init__(stage, dataset, **options)

    def begin(self, program_fd: int) -> None:
        super().begin(program_fd)
        self._bridges.open(self.number, self._bridge, program_fd, self.spec, os.environb)

    def __exit__(self, *reason: object) -> None:
        self._bridges.drop(self._bridge)
        super().__exit__(*reason)

    def start_workers(self, count: int) -> list[int]:
        """One of this machine, and numbers for remote ones: they start when there is a ring."""
        (self._here,) = super().start_workers(1)
        self.stage.event("bridge_ready", self._bridge)
        return [new_number() for _ in range(count)]

    def measure(self, worker: int, step: int = 0) -> Measured:
        return super().measure(self._here, step)

    def lend(self, workers: list[int]) -> None:
        super().lend([self._here])
        assert self.ring is not None
        assert self.measure_told is not None
        self._bridges.lend_ring(self._bridge, self.ring.shared_fd, self.measure_told.layout)
        self._bridges.tell(self._bridge, StartRemote(tuple(workers)))
        for worker in workers:
            self.stage.event("remote_ready", worker)

    def assign(self, worker: int, *tasks: tuple[int, ...]) -> list[int]:
        if worker == self._here:
            return super().assign(worker, *tasks)
        numbers = [new_number() for _ in tasks]
        rows = tuple((number, *task) for number, task in zip(numbers, tasks))
        self._bridges.tell(self._bridge, FillRemote(worker, rows))
        return numbers
