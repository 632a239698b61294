"""Seeds torch, numpy and random before each sample, at a price that tiny samples can pay.

What a sample sees is exactly

    torch.default_generator.manual_seed(seed); numpy.random.seed(seed >> 31); random.seed(seed)

That takes 1, 1.3 and 3.5 us. In a worker a generator is seeded lazily once it has gone unused for TRIAL samples: its
state then still is what the last seeding left, which its watch tells (generator_watches). Should a sample draw from it
after all, its result is thrown away, the generator is seeded properly, the sample is made again, and from then on that
generator is seeded each time. Code that only reads a state (and perhaps draws, and puts it back: then nothing shows) is
served by the hooks of state_readers. Once nothing is to be seeded at all (`seeds_nothing`), several samples may be made
before it is asked whether one of them has drawn, and all of them are made again if one has. Decision 0007 has the
reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from prefetchd.workers.generator_watches import TORCH, watches
from prefetchd.workers.own_generators import OwnGenerators
from prefetchd.workers.state_readers import ask_before_reading

TRIAL = 32

_T = TypeVar("_T")


class SampleSeeder:
    """Runs a function under the seeds of a sample. Not for use by several threads."""

    def __init__(self, *, lazy: bool = False) -> None:
        """Makes a seeder. With `lazy` there is at most one a process, which nobody else seeds or draws in, and which
        has called hook_state_readers()."""
        self._watched = watches()
        self._lazy = [lazy and watch.trustworthy for watch in self._watched]
        self._samples = 0
        self._own: OwnGenerators | None = None
        self._sought: OwnGenerators | None = None
        self.seeds_nothing = False
        """Whether no generator is seeded before a sample."""
        self.unseeded: int | None = None
        """The seed of the sample that is being made without having been seeded. Where `seeds_nothing` is true, whoever
        makes samples without run() sets it before each, and asks drew() after the last."""
        if lazy:
            ask_before_reading(self)

    def seek(self, own: OwnGenerators) -> None:
        """Seeds what `own` finds, too, from the first sample on."""
        self._sought = own
        self._see_what_is_seeded()

    def run(self, seed: int, make: Callable[[Any], _T], argument: Any) -> _T:
        """Returns make(argument) with all generators seeded by `seed`. Raises what `make` raises."""
        if self._sought is not None:
            return self._seeking(self._sought, seed, make, argument)
        if self._own is not None:
            self._own.seed(seed)
        trial = self._samples < TRIAL
        self._samples += trial
        skipped = False
        for generator, watch in enumerate(self._watched):
            if trial or not self._lazy[generator]:
                watch.seed(seed)
            else:
                skipped = True
        self.unseeded = seed if skipped else None
        try:
            result = make(argument)
        except Exception:
            # What it raised may come of numbers that were never seeded for it.
            if not (skipped and self._drew()):
                raise
            return self._again(seed, make, argument)
        finally:
            self.unseeded = None
        if trial:
            self._drew()
            self._see_what_is_seeded()
        elif skipped and self._drew():
            return self._again(seed, make, argument)
        return result

    def drew(self) -> bool:
        """Whether a sample may have drawn since `seeds_nothing` was last found true: then it no longer is, and all
        samples since then are to be made again."""
        self.unseeded = None
        return self._drew() or not self.seeds_nothing

    def seed(self, seed: int) -> None:
        """Seeds all generators now, for work on a batch as a whole."""
        self.unseeded = None
        for watch in self._watched:
            watch.seed(seed)
        if self._own is not None:
            self._own.seed(seed)

    def before_reading(self, generator: int) -> None:
        """Seeds a generator, by its number, now if that was put off: the user's code is about to read its state. What
        was drawn from it already, run() or drew() finds out."""
        watch = self._watched[generator]
        if self.unseeded is not None and self._lazy[generator] and not watch.changed():
            self._lazy[generator] = self.seeds_nothing = False
            watch.seed(self.unseeded)

    def never_put_off(self, generator: int) -> None:
        """Seeds a generator, by its number, before each sample from the next one on."""
        # Else run() or drew() is about to find out that it was drawn from, and comes to the same.
        if self.unseeded is None or not self._watched[generator].changed():
            self._lazy[generator] = self.seeds_nothing = False

    def _drew(self) -> bool:
        drew = False
        for generator, watch in enumerate(self._watched):
            if self._lazy[generator] and watch.changed():
                self._lazy[generator] = self.seeds_nothing = False
                drew = True
        return drew

    def _see_what_is_seeded(self) -> None:
        nothing_of_its_own = self._own is None and self._sought is None
        self.seeds_nothing = self._samples >= TRIAL and all(self._lazy) and nothing_of_its_own

    def _seeking(self, own: OwnGenerators, seed: int, make: Callable[[Any], _T], argument: Any) -> _T:
        """Makes the first sample of all. Where the program has generators of its own it is made twice: what an object
        makes once, when it is first asked, is to be made with its generators as every worker was given them; and some
        of them may only come to be then."""
        self._sought = None
        try:
            result = self.run(seed, make, argument)
        except Exception:
            self._look(own)
            if not own:
                raise
        else:
            self._look(own)
            if not own:
                return result
        self._own = own
        return self.run(seed, make, argument)

    def _look(self, own: OwnGenerators) -> None:
        own.look()
        if own.holds_torch_s:
            self.never_put_off(TORCH)

    def _again(self, seed: int, make: Callable[[Any], _T], argument: Any) -> _T:
        self.seed(seed)
        return make(argument)
