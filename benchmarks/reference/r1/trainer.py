"""train is a trainer that takes batches from a directory and writes now and then where it is; it measures what its loop
waits for files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

LOOK_AGAIN_S = 0.001


class Waited(NamedTuple):
    """Holds seconds for the first batch, for all others, how many of these were not there at the first look, seconds in
    all."""

    first_s: float
    others_s: float
    late: int
    total_s: float


def train(
    path_of: Callable[[int, int], str],
    load: Callable[[str], Any],
    progress: str,
    *,
    epochs: int,
    batches: int,
    step_s: float,
    write_every: int,
) -> Waited:
    """Trains over the batches, and returns what it waited. `step_s` is the work of a device on one batch: the CPU has
    nothing to do meanwhile."""
    first_s = others_s = 0.0
    late = 0
    began_s = time.perf_counter()
    for epoch in range(epochs):
        for batch in range(batches):
            if batch % write_every == 0:
                with open(progress, "w") as file:
                    file.write(f"{epoch}\n{batch}\n")
            asked_s = time.perf_counter()
            path = path_of(epoch, batch)
            # Looked for again and again, as the author's trainer does; being late at the first look is what counts.
            is_late = False
            while not os.path.exists(path):
                is_late = True
                time.sleep(LOOK_AGAIN_S)
            waited_s = time.perf_counter() - asked_s
            if epoch == batch == 0:
                first_s = waited_s
            else:
                others_s += waited_s
                late += is_late
            content = load(path)
            time.sleep(step_s)
            del content
    return Waited(first_s, others_s, late, time.perf_counter() - began_s)
