"""How much is lost on rows of tokens? 100,000 rows of 128 tokens in a memory-mapped file, shuffled, batch 512, one
__getitem__ each; then the same rows by __getitems__.

python -m benchmarks.tokens [--rounds N]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.loading import compare

ROWS = 100_000
TOKENS = 128
BATCH = 512
BATCHES_A_ROUND = 780


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Gives what a language model is trained on: the tokens of a row, and those that follow them."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r", shape=(ROWS, TOKENS + 1))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.from_numpy(self.tokens[index].astype(np.int64))
        return row[:-1], row[1:]


class RowsAtOnce(Rows):
    """The same, made for a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows = torch.from_numpy(self.tokens[indices].astype(np.int64))
        return list(zip(rows[:, :-1], rows[:, 1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_257, (ROWS, TOKENS + 1), dtype=np.uint16).tofile(path)
        to_reach: dict[str, float | None] = {"two bare loops": 0.95, "DataLoader": 1.2}
        compare("tokens", Rows(path), BATCH, BATCHES_A_ROUND, rounds, to_reach)
        compare("with __getitems__", RowsAtOnce(path), BATCH, BATCHES_A_ROUND, rounds, {"DataLoader": None})


if __name__ == "__main__":
    main()
