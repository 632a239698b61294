"""How fast are texts of different lengths, padded to the longest of their batch? Batch 64, 20 to 400 words.

    python -m benchmarks.text [--rounds N] [--prepared]

The dataset of examples/texts.py: each text is split and looked up at each access. --prepared has done that before, so
that collation and the way to the trainer are all that is left.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch
from benchmarks.loading import RING_BATCHES, WORKERS
from examples.texts import Texts, padded

TEXTS, BATCH = 20_000, 64
BATCHES_A_ROUND = 900
TO_REACH = 1.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prepared", action="store_true")
    arguments = parser.parse_args()
    dataset: Any = Texts("benchmark", TEXTS)
    if arguments.prepared:
        dataset = [dataset[number] for number in range(TEXTS)]
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": WORKERS}
    common["collate_fn"] = padded
    with own_daemon(workers=WORKERS), PrefetchLoader(dataset, buffer=RING_BATCHES, **common) as ours:
        theirs = DataLoader(dataset, persistent_workers=True, **common)

        def batches_a_second(loader: DataLoader[Any]) -> float:
            batches = endless(loader)
            # The workers of the one that is not measured stand still: its buffer is full.
            for _ in itertools.islice(batches, RING_BATCHES + 1):
                pass
            elapsed = stopwatch()
            for batch in itertools.islice(batches, BATCHES_A_ROUND):
                del batch
            return BATCHES_A_ROUND / elapsed()

        contestants = {
            "prefetchd": lambda: batches_a_second(ours),
            "DataLoader": lambda: batches_a_second(theirs),
        }
        figures = interleave(arguments.rounds, contestants)
    title = "text, prepared" if arguments.prepared else "text"
    report(title, "batches/s", figures, "prefetchd", {"DataLoader": TO_REACH})


if __name__ == "__main__":
    main()
