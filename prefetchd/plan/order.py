"""Shuffles an epoch by a keyed bijection of range(n) that nobody has to store. Order version 1; decision 0008 says why
small orders are sorted.

n > SMALL: a Feistel network over w = bit_length(n - 1) bits with ROUNDS rounds, and cycle-walking (Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002): a result outside range(n) is encrypted again, fewer than two
times on average. The word is split into a left part of w // 2 bits and a right part of the rest; even rounds change the
left part by the right one, odd rounds the right part by the left one:

    part ^= low bits of finalise((round key + other part) mod 2**64)
    round key i = derive(key, ORDER, n, i)

n <= SMALL: range(n) sorted by derive(key, ORDER, n, position), ties by position: small Feistel domains reach too few of
the permutations.
"""

from __future__ import annotations

import functools

import numpy as np

from prefetchd.plan.seeds import ORDER, U64, finalise_array
from prefetchd.wire.seed_words import GAMMA, MASK, derive, finalise

ROUNDS = 8
SMALL = 2048


class Permutation:
    """The permutation of range(n) that `key` selects. Immutable; O(1) memory (at most SMALL words)."""

    def __init__(self, key: int, n: int) -> None:
        self.n = n
        self.key = key & MASK
        self._sorted = _small_order(self.key, n) if n <= SMALL else None
        width = max(n - 1, 1).bit_length()
        self._right_bits = width - width // 2
        self._left_mask = (1 << width // 2) - 1
        self._right_mask = (1 << self._right_bits) - 1
        self._round_keys = [derive(self.key, ORDER, n, i) for i in range(ROUNDS)]

    def at(self, position: int) -> int:
        """Returns the element at `position`, 0 <= position < n."""
        if not 0 <= position < self.n:
            raise IndexError(f"position {position} of a permutation of {self.n}")
        if self._sorted is not None:
            return int(self._sorted[position])
        word = self._encrypt(position)
        while word >= self.n:
            word = self._encrypt(word)
        return word

    def take(self, positions: U64) -> U64:
        """Returns the elements at `positions`, each in range(n)."""
        if self._sorted is not None:
            chosen: U64 = self._sorted[positions]
            return chosen
        words: U64 = self._encrypt_array(positions)
        outside = np.flatnonzero(words >= self.n)
        while outside.size:
            again = self._encrypt_array(words[outside])
            words[outside] = again
            outside = outside[again >= self.n]
        return words

    def _encrypt(self, word: int) -> int:
        left, right = word >> self._right_bits, word & self._right_mask
        for i, key in enumerate(self._round_keys):
            if i % 2 == 0:
                left ^= finalise(key + right) & self._left_mask
            else:
                right ^= finalise(key + left) & self._right_mask
        return left << self._right_bits | right

    def _encrypt_array(self, words: U64) -> U64:
        left_mask, right_mask = np.uint64(self._left_mask), np.uint64(self._right_mask)
        left, right = words >> np.uint64(self._right_bits), words & right_mask
        for i, key in enumerate(self._round_keys):
            if i % 2 == 0:
                left = left ^ (finalise_array(right + np.uint64(key)) & left_mask)
            else:
                right = right ^ (finalise_array(left + np.uint64(key)) & right_mask)
        word: U64 = left << np.uint64(self._right_bits) | right
        return word


@functools.lru_cache(maxsize=8)
def _small_order(key: int, n: int) -> U64:
    word = finalise(key + GAMMA)
    for part in (ORDER, n):
        word = finalise((word ^ part) + GAMMA)
    positions = np.arange(n, dtype=np.uint64)
    ranks = finalise_array((positions ^ np.uint64(word)) + np.uint64(GAMMA))
    return np.argsort(ranks, kind="stable").astype(np.uint64)
