"""What would one pipeline for trainers on several machines bring? A simulation of what is not built (decision 0163).

python -m benchmarks.shared_pipeline [shared] [coordinated] [--seed N]

shared       trainers that each read the same batches, as in a search for hyperparameters: batches a second of each,
             when each machine's pipeline makes all batches for itself, and when one pipeline makes each batch once and
             sends it to all, with the same CPUs in all. A trainer may be so many batches ahead of another as the
             pipeline keeps; what was not kept is made again
coordinated  ranks of one training that wait for each other at each step, with samples of different lengths: how long
             steps take beside steps in which all ranks have batches of similar lengths
"""

from __future__ import annotations

import argparse
import random
import statistics

SECTIONS = ("shared", "coordinated")
CPUS = 64
"""CPUs that fill, in all."""
FILL_S = 1.28
"""CPU seconds of a batch of 256 pictures (docs/cluster.md)."""
BATCH_GB = 0.0385
RECEIVING_S_A_GB = 2.4
NETWORK_GB_S = 3.0
"""What one machine's network card carries."""
STEP_S = 0.1
"""The mean time of a trainer's step."""
STEPS = 2000
RANK_STEPS = 500
SAMPLES = 16
"""The samples of a rank's batch."""
BUCKETS = 8


def shared(trainers: int, kept: int, spread: float, rng: random.Random) -> tuple[float, float]:
    """Returns the batches a second of each trainer that pipelines of their own allow, and those with one pipeline that
    keeps `kept` batches. Steps differ by `spread`, and each trainer's mean by half of it."""
    alone = min(1 / STEP_S, CPUS / trainers / FILL_S)
    means = [STEP_S * (1 + spread / 2 * rng.uniform(-1, 1)) for _ in range(trainers)]
    clocks, steps, made_until, again = [0.0] * trainers, [0] * trainers, 0, 0
    made_s = 0.0
    while min(steps) < STEPS:
        # The trainer that is first in time takes its next batch.
        who = min((each for each in range(trainers) if steps[each] < STEPS), key=lambda each: clocks[each])
        step = steps[who]
        if step >= made_until:
            # One pipeline makes it, with all CPUs less those that send it to all.
            made_s = max(made_s, clocks[who] - kept * FILL_S / CPUS) + _made_once_s(trainers)
            made_until = step + 1
            clocks[who] = max(clocks[who], made_s)
        elif step < made_until - kept:
            again += 1
            made_s += FILL_S / CPUS
            clocks[who] = max(clocks[who], made_s)
        clocks[who] += means[who] * (1 + spread * rng.uniform(-1, 1))
        steps[who] += 1
    return alone, STEPS / statistics.mean(clocks)


def _made_once_s(trainers: int) -> float:
    """Returns the seconds from one new batch to the next: the CPUs' or the network card's."""
    receiving = trainers * BATCH_GB * RECEIVING_S_A_GB
    return max((FILL_S + receiving) / CPUS, (trainers - 1) * BATCH_GB / NETWORK_GB_S)


def coordinated(ranks: int, sigma: float, rng: random.Random) -> tuple[float, float]:
    """Returns how many times as long a step takes without buckets, and with buckets of each rank's own, as with buckets
    that all ranks take from at the same step. A step takes as long as the longest sample of any rank, to which all are
    padded. Lengths are log-normal."""
    lengths = [rng.lognormvariate(0.0, sigma) for _ in range(RANK_STEPS * ranks * SAMPLES)]
    without = _mean_step([lengths], ranks * SAMPLES)
    lengths.sort()
    size = len(lengths) // BUCKETS
    buckets = [lengths[bucket * size : (bucket + 1) * size] for bucket in range(BUCKETS)]
    for bucket in buckets:
        rng.shuffle(bucket)
    together = _mean_step(buckets, ranks * SAMPLES)
    longest = [max(bucket[at : at + SAMPLES]) for bucket in buckets for at in range(0, size - SAMPLES + 1, SAMPLES)]
    rng.shuffle(longest)
    return without / together, _mean_step([longest], ranks) / together


def _mean_step(groups: list[list[float]], each: int) -> float:
    """Returns the mean of the longest of each so many in a row."""
    return statistics.mean(
        max(group[at : at + each]) for group in groups for at in range(0, len(group) - each + 1, each)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sections = SECTIONS if "all" in arguments.sections else arguments.sections
    if "shared" in sections:
        print("trainers  kept  spread   own pipelines   one pipeline   ratio")
        for trainers in (2, 4, 8, 16):
            for kept, spread in ((64, 0.1), (64, 0.5), (1024, 0.5)):
                alone, together = shared(trainers, kept, spread, random.Random(arguments.seed))
                print(f"{trainers:8} {kept:5} {spread:7} {alone:12.1f}/s {together:12.1f}/s {together / alone:7.2f}")
    if "coordinated" in sections:
        print("ranks  sigma   without buckets   own buckets   (coordinated buckets: 1)")
        for ranks in (2, 8, 64):
            for sigma in (0.25, 0.5, 1.0):
                without, own = coordinated(ranks, sigma, random.Random(arguments.seed))
                print(f"{ranks:5} {sigma:6} {without:14.2f} {own:14.2f}")


if __name__ == "__main__":
    main()
