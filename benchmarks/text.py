"""How fast are texts of different lengths, padded to the longest of their batch? Batch 64, 20 to 400 words.

    python -m benchmarks.text [--rounds N] [--prepared]

The dataset of examples/texts.py: each text is split and looked up at each access. --prepared has done that before, so
that collation and the way to the trainer are all that is left.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.loading import compare
from examples.texts import Texts, padded

TEXTS, BATCH = 20_000, 64
BATCHES_A_ROUND = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prepared", action="store_true")
    arguments = parser.parse_args()
    dataset: Any = Texts("benchmark", TEXTS)
    if arguments.prepared:
        dataset = [dataset[number] for number in range(TEXTS)]
    title = "text, prepared" if arguments.prepared else "text"
    compare(title, dataset, BATCH, BATCHES_A_ROUND, arguments.rounds, {"DataLoader": 1.2}, padded)


if __name__ == "__main__":
    main()
