"""A trainer in a process of its own that compares each of its batches with the oracle, and tells how many it took."""

from __future__ import annotations

import mmap
import os
import time
import traceback

import torch
from prefetchd_client import PrefetchLoader

from prefetchd.wire.messages import PROTOCOL_VERSION, Hello
from prefetchd.wire.stream_spec import encode_spec
from prefetchd.workers.process_setup import die_with_parent
from tests.scenario.datasets import Dice, equal
from tests.scenario.oracle import epoch_batches

STREAM = "fuzzed"
EPOCHS = 4
# One worker: a second one comes and goes with the need, and the daemon's descriptors with it.
LOADER = {"batch_size": 4, "shuffle": True, "seed": 9, "buffer": 8, "stream": STREAM, "num_workers": 1}
LENGTH = 120
WITHIN_S = 60.0
_TAKEN, _WRONG, _STOP = range(3)


class FuzzedTrainer:
    """A context manager. It shares the stream `STREAM` with whoever says so; its epochs come again and again."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 64)).cast("Q")
        self._pid = 0

    def __enter__(self) -> FuzzedTrainer:
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            code = 1
            try:
                die_with_parent(parent)
                self._train()
                code = 0
            except BaseException:
                self._cells[_WRONG] += 1
                traceback.print_exc()
            finally:
                os._exit(code)
        return self

    def __exit__(self, *_: object) -> None:
        self._cells[_STOP] = 1
        os.waitpid(self._pid, 0)

    @property
    def taken(self) -> int:
        return self._cells[_TAKEN]

    @property
    def wrong(self) -> int:
        """Batches that were not the oracle's; an exception counts as one."""
        return self._cells[_WRONG]

    def until_it_has_taken(self, batches: int) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while self.taken < batches:
            assert not self.wrong, "the trainer has failed"
            assert time.monotonic() < deadline_s, f"{self.taken} of {batches} batches within {WITHIN_S:.0f} s"
            time.sleep(0.01)

    def hello(self) -> Hello:
        """What another consumer of its stream says."""
        with PrefetchLoader(Dice(LENGTH), **LOADER) as loader:
            spec = loader.spec
        return Hello(
            PROTOCOL_VERSION, "trainer", "a test", os.getpid(), STREAM, spec.fingerprint, encode_spec(spec), True
        )

    def _train(self) -> None:
        torch.set_num_threads(1)
        batch_size, seed = LOADER["batch_size"], LOADER["seed"]
        expected = [
            epoch_batches(Dice(LENGTH), epoch, batch_size=batch_size, seed=seed, shuffle=True)
            for epoch in range(EPOCHS)
        ]
        with PrefetchLoader(Dice(LENGTH), **LOADER) as loader:
            while True:
                for epoch in range(EPOCHS):
                    loader.set_epoch(epoch)
                    for batch, wanted in zip(loader, expected[epoch], strict=True):
                        self._cells[_WRONG] += not equal(batch, wanted)
                        self._cells[_TAKEN] += 1
                        if self._cells[_STOP]:
                            return
                        time.sleep(0.001)
