"""seeded() seeds a piece of work that draws at random, of which the global generators notice nothing."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from prefetchd.workers.generator_states import kept


@contextlib.contextmanager
def seeded(seed: int, generator: torch.Generator | None = None) -> Iterator[None]:
    """Has torch's, numpy's and random's global generators, and `generator`, begin with `seed` while its block runs;
    afterwards all are as they were. Costs about 15 us."""
    drawn_from = [torch.default_generator, np.random.mtrand._rand, random._inst]
    if generator is not None:
        drawn_from.append(generator)
    put_back = [kept(each) for each in drawn_from]
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed >> 31)
        random.seed(seed)
        if generator is not None:
            generator.manual_seed(seed)
        yield
    finally:
        for put in put_back:
            put()
