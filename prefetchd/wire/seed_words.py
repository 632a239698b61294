"""Computes the arithmetic below every seed: SplitMix64 on unsigned words of 64 bits (docs/formats.md, "Order and
seeds").

    f(x) = finalise(x + GAMMA)
    derive(seed, purpose, a, b) = f(f(f(f(seed) ^ purpose) ^ a) ^ b)
    device seed = f(derive(seed, 4, epoch, step) ^ rank) >> 1

All other seeds are the plan's. This one is the trainer's: `device_transform` runs there.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15

# Of the purposes that keep families of seeds apart (plan.seeds) this one is drawn from outside the plan.
DEVICE = 4


def finalise(word: int) -> int:
    """Applies a bijection on 64-bit words whose output bits each depend on all input bits."""
    word &= MASK
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def derive(seed: int, purpose: int, first: int, second: int) -> int:
    """Derives one 64-bit word from (seed, purpose, first, second)."""
    word = finalise(seed + GAMMA)
    for part in (purpose, first, second):
        word = finalise((word ^ part) + GAMMA)
    return word


def device_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """Returns the seed for what a trainer does with a batch on its device: 0 <= seed < 2**63."""
    return finalise((derive(seed, DEVICE, epoch, step) ^ rank) + GAMMA) >> 1
