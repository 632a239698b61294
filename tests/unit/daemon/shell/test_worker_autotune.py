"""The daemon's tuner of workers where it cannot look at memory."""

from __future__ import annotations

import errno

from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.shell import worker_autotune
from prefetchd.daemon.shell.worker_autotune import WorkerAutotune
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World


class Nothing:
    """Knows no past, and no process."""

    looked_s = 1.0

    def history(self, stream: int) -> None:
        return None

    def pid(self, worker: int) -> int:
        return 0


def test_without_a_descriptor_left_it_looks_at_nothing_and_lives_on(monkeypatch):
    world = World()
    world.engine.limits = Limits(autotune=True)
    world.join(StreamSpec("0" * 32, 0, "sequential", 6000, 3)).place(1, 0, 0, False)
    world.come_to_rest()
    tuner = WorkerAutotune(world.engine, Nothing(), Nothing(), 2, None, lambda *change: None)
    looked = []

    def none_left():
        looked.append(True)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(worker_autotune, "left_bytes", none_left)
    tuner.look(100.0)
    assert looked
