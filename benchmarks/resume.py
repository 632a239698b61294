"""How soon does a restarted trainer have its first batch? The run before was killed in the middle of an epoch.

    python -m benchmarks.resume [--rounds N] [--paths N]

Each round kills a trainer (SIGKILL) whose ring is full and starts another one that resumes where it was, or, "from
behind", BACK batches earlier, with lookback=. What is timed begins with the loader's construction, and once more with
the start of the process, imports included: the daemon fills the ring meanwhile. The fingerprint is shown apart.
DataLoader, which has to make its batches up to there again, skips over their samples by its sampler: the best that can
be done with it. Once more with a dataset that keeps a list of a million paths.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.harness import own_daemon

BATCH = 64
RING_BATCHES = 32
STOP_AT = 20
BACK = 6
OURS, FROM_BEHIND, DATALOADER = "prefetchd", "from behind", "DataLoader"
SAMPLE = (3, 224, 224)
REACH_S = 0.1


class Pictures(Dataset[torch.Tensor]):
    """Makes arrays from their index, as if decoded; `paths` names that nobody opens."""

    def __init__(self, length: int, paths: int) -> None:
        self.length = length
        self.paths = [f"/data/train/class_{number % 1000:04}/image_{number:08}.jpeg" for number in range(paths)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = np.random.default_rng(index).integers(0, 256, SAMPLE, dtype=np.uint8)
        return torch.from_numpy(pixels)


class From(Sampler[int]):
    """Yields numbers from `first` on."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.end))

    def __len__(self) -> int:
        return self.end - self.first


def train(loader: str, paths: int, resume: bool, state_file: Path) -> None:
    """Runs one trainer: says how long its first batch took, then goes on to STOP_AT and waits to be killed."""
    dataset = Pictures(20_000, paths)
    began_s = time.perf_counter()
    fingerprint_s = 0.0
    found: Any
    if loader != DATALOADER:
        back = BACK if loader == FROM_BEHIND else 0
        found = PrefetchLoader(
            dataset, batch_size=BATCH, num_workers=2, buffer=RING_BATCHES, lookback=back, stream=loader
        )
        fingerprint_s = found.fingerprint_s
        if resume:
            found.load_state_dict(json.loads(state_file.read_text()))
    else:
        first = STOP_AT * BATCH if resume else 0
        found = DataLoader(dataset, batch_size=BATCH, sampler=From(first, len(dataset)), num_workers=2)
    batches = iter(found)
    next(batches)
    first_s = time.perf_counter() - began_s
    print(json.dumps({"first_s": first_s - fingerprint_s, "fingerprint_s": fingerprint_s}), flush=True)
    for _ in range(STOP_AT - 1):
        next(batches)
    if loader != DATALOADER:
        state = found.state_dict()
        state_file.write_text(json.dumps({**state, "step": state["step"] - back}))
    print("stopped", flush=True)
    time.sleep(600)


def run(loader: str, paths: int, resume: bool, state_file: Path) -> dict[str, float]:
    """Starts a trainer, lets it come to its end and its ring be full, and kills it. Returns what it said."""
    command = [sys.executable, "-m", "benchmarks.resume", "--train", loader, "--paths", str(paths)]
    command += ["--state", str(state_file), *(["--resume"] if resume else [])]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said: dict[str, float] = json.loads(process.stdout.readline())
        said["from_start_s"] = time.monotonic() - began_s
        process.stdout.readline()
        if loader != DATALOADER:
            wait_for_full_ring(loader)
        process.kill()
    return said


def wait_for_full_ring(stream: str) -> None:
    while True:
        done = subprocess.run([sys.executable, "-m", "prefetchd", "status", "--json"], check=True, capture_output=True)
        streams = json.loads(done.stdout)["streams"]
        ring = next(each["ring"] for each in streams if each["name"] == stream)
        if ring is not None and ring["ready"] >= RING_BATCHES // 2 - 2 and not ring["filling"]:
            return
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paths", type=int, default=1_000_000)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.paths, arguments.resume, arguments.state)
        return
    print(describe_machine())
    for paths in (0, arguments.paths):
        for ours in (OURS, FROM_BEHIND):
            compare(ours, paths, arguments.rounds)


def compare(ours: str, paths: int, rounds: int) -> None:
    """Runs `rounds` rounds of ours and DataLoader, one after the other."""
    figures: dict[str, list[dict[str, float]]] = {ours: [], DATALOADER: []}
    with own_daemon(workers=2), tempfile.TemporaryDirectory() as directory:
        state_file = Path(directory) / "state.json"
        run(ours, paths, False, state_file)
        for _ in range(rounds):
            for loader, found in figures.items():
                found.append(run(loader, paths, True, state_file))
    print(f"\nresume, {paths:,} paths in the dataset")
    medians = {}
    for loader, found in figures.items():
        first = [each["first_s"] for each in found]
        medians[loader] = statistics.median(first)
        print(f"  {loader:12} first batch {medians[loader] * 1000:8.1f} ms   ({min(first):.3f} to {max(first):.3f} s)")
    with_imports = {loader: [each["from_start_s"] for each in found] for loader, found in figures.items()}
    for loader, took in with_imports.items():
        print(
            f"  {loader:12} from the start of the process {statistics.median(took):5.2f} s   "
            f"({min(took):.2f} to {max(took):.2f} s)"
        )
    ratios = [mine / theirs for mine, theirs in zip(with_imports[ours], with_imports[DATALOADER])]
    print(f"  from the start, of DataLoader's: {statistics.median(ratios):.2f}")
    fingerprint_s = statistics.median(each["fingerprint_s"] for each in figures[ours])
    print(f"  the fingerprint, apart: {fingerprint_s * 1000:.1f} ms")
    print(f"  DataLoader / {ours}: {medians[DATALOADER] / medians[ours]:.1f}")
    print(f"  {ours} to {REACH_S * 1000:.0f} ms: {medians[ours] / REACH_S:.2f}")


if __name__ == "__main__":
    main()
