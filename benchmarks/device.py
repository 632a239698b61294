"""What does the way to a GPU cost? One command for a machine with a GPU; correctness first, figures after.

    python -m benchmarks.device [--rounds N] [--steps N] [--only correctness|copies|latency|training]

Correctness: batches on the device, by each way, have the digests of those on the CPU, and a seeded transform makes the
same bits twice. Any difference ends the run with exit code 2, before anything is measured. Without a GPU: exit code 1.

Copies: full rings emptied onto the device, against plain copies of as many bytes from pinned memory. Latency: next() on
ready batches, a small kernel in between. For both, all slots are registered before. Training: steps of ResNet-50 (bf16,
channels_last, compiled), fed by the ring, by DataLoader(pin_memory=True), and by one batch that lies on the device;
with the share of a CPU that the trainer's process uses meanwhile.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.device.images import CropFlipNormalize
from prefetchd_demo.machine import describe_machine
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch

BATCH = 256
PICTURE = (3, 232, 232)
CROP = 224
SAMPLES = 100_000
STORED = 4096
RING_BATCHES = 24
READY_RING = 64
"""Slots of the ring where batches are taken that are ready: enough for the first next() after a pause, which has more
to do."""
WARM_UP_RINGS = 40
CHECKED_BATCHES = 40
LATENCY_BATCHES = 500
REACH_BANDWIDTH = 0.95
REACH_NEXT_US = 100.0
REACH_TRAINING = 0.99
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Holds pictures that lie ready in memory, as many as are `stored`: production is a copy."""

    def __init__(self, samples: int, shape: tuple[int, ...], stored: int | None = None) -> None:
        self._samples = samples
        self.data = torch.empty(stored or samples, *shape, dtype=torch.uint8)
        self.data.random_(0, 256, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data[index % len(self.data)], index % 1000


def transform() -> CropFlipNormalize:
    return CropFlipNormalize(CROP, mean=MEAN, std=STD, dtype=torch.bfloat16, memory_format=torch.channels_last)


# --- correctness ---


def digest(batch: Any) -> str:
    """Returns the digest of all bytes of all tensors."""
    found = hashlib.sha1(usedforsecurity=False)
    for tensor in batch:
        found.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def digests(dataset: Dataset[Any], take: Callable[[Any], Any], **arguments: Any) -> list[str]:
    with PrefetchLoader(dataset, batch_size=64, shuffle=True, drop_last=True, seed=7, buffer=8, **arguments) as loader:
        # Taken before any is looked at: a look waits for the device.
        found = []
        for batch in itertools.islice(endless(loader), CHECKED_BATCHES):
            found.append(take(batch))
            del batch
        return [digest(each) for each in found]


def check(device: str) -> list[str]:
    """Returns what is wrong, one line each."""
    dataset = Pictures(1000, (3, 64, 64))
    wanted = digests(dataset, lambda batch: [each.clone() for each in batch])
    side = torch.cuda.Stream()

    def by_hand(batch: Any) -> Any:
        return [each.to(device, non_blocking=True) for each in batch]

    def on_another_stream(batch: Any) -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = [each.clone() for each in batch]
            for each in batch:
                each.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        return found

    ways: dict[str, list[str]] = {
        "device": digests(dataset, lambda batch: batch, device=device),
        "device, copied by the consumer": digests(dataset, lambda batch: [x.clone() for x in batch], device=device),
        "device, used on another stream": digests(dataset, on_another_stream, device=device),
        "pin_memory and .to(non_blocking=True)": digests(dataset, by_hand, pin_memory=True),
    }
    wrong = [f"{way}: not the CPU's batches" for way, found in ways.items() if found != wanted]
    crop = CropFlipNormalize(56, mean=MEAN, std=STD, padding=4)
    runs = [digests(dataset, lambda batch: batch, device=device, device_transform=crop) for _ in range(2)]
    if runs[0] != runs[1]:
        wrong.append("device_transform: two runs differ")
    if len({*runs[0]}) != CHECKED_BATCHES:
        wrong.append("device_transform: two batches are the same")
    return wrong


# --- figures ---


def wait_until_full(slots: int) -> None:
    while True:
        done = subprocess.run([sys.executable, "-m", "prefetchd", "status", "--json"], check=False, capture_output=True)
        rings = [each["ring"] for each in json.loads(done.stdout)["streams"] if each["ring"] is not None]
        if rings and rings[0]["ready"] + rings[0]["leased"] >= slots - 1:
            return
        time.sleep(0.2)


def register_all(loader: PrefetchLoader[Any], batches: Iterator[Any], slots: int) -> None:
    """Has every slot registered: one is registered in a next() that finds another batch there."""
    for _ in range(WARM_UP_RINGS):
        if loader.stats()["registered_slots"] == slots:
            break
        wait_until_full(slots)
        for _ in itertools.islice(batches, slots // 2):
            pass
    stats = loader.stats()
    registered = f"{stats['registered_slots']} of {slots} slots registered"
    print(f"  memory {stats['memory']}, {registered} {stats['memory_error']}")


def ring_gigabytes_a_second(batches: Iterator[Any]) -> float:
    """Takes a full ring, as far as it may be taken without waiting for workers, onto the device."""
    wait_until_full(READY_RING)
    torch.cuda.synchronize()
    taken, elapsed = 0, stopwatch()
    for pictures, _ in itertools.islice(batches, READY_RING // 2):
        taken += pictures.numel()
    torch.cuda.synchronize()
    return taken / elapsed() / 1e9


def plain_gigabytes_a_second(device: str) -> float:
    pinned = [torch.zeros(BATCH, *PICTURE, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    torch.cuda.synchronize()
    taken, elapsed = 0, stopwatch()
    for place in range(READY_RING // 2):
        taken += pinned[place % 4].to(device, non_blocking=True).numel()
    torch.cuda.synchronize()
    return taken / elapsed() / 1e9


def copies(device: str, rounds: int) -> None:
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "buffer": READY_RING}
    dataset = Pictures(SAMPLES, PICTURE, STORED)
    with own_daemon(), PrefetchLoader(dataset, device=device, **arguments) as ours:
        batches = endless(ours)
        register_all(ours, batches, READY_RING)
        plain_gigabytes_a_second(device)
        runs = {
            "prefetchd": lambda: ring_gigabytes_a_second(batches),
            "plain pinned copies": lambda: plain_gigabytes_a_second(device),
        }
        figures = interleave(rounds, runs)
    report("host to device", "GB/s", figures, "prefetchd", {"plain pinned copies": REACH_BANDWIDTH})


def latency(device: str) -> None:
    """Measures next() of batches that are ready: a full ring is taken by halves, and the device is idle at each
    next()."""
    arguments: dict[str, Any] = {"batch_size": 32, "shuffle": True, "drop_last": True, "buffer": READY_RING}
    dataset = Pictures(SAMPLES, PICTURE, STORED)
    with own_daemon(), PrefetchLoader(dataset, device=device, **arguments) as ours:
        batches, took_us = endless(ours), []
        register_all(ours, batches, READY_RING)
        while len(took_us) < LATENCY_BATCHES:
            wait_until_full(READY_RING)
            for _ in range(READY_RING // 2):
                began_s = time.perf_counter()
                pictures, _ = next(batches)
                took_us.append((time.perf_counter() - began_s) * 1e6)
                pictures.float().mean()
                torch.cuda.synchronize()
    took_us.sort()
    p50, p99 = statistics.median(took_us), took_us[int(0.99 * len(took_us))]
    print(f"\nnext() with device={device!r}: p50 {p50:.0f} us, p99 {p99:.0f} us   to reach: {REACH_NEXT_US:.0f} us")


class Training:
    """Trains ResNet-50 with SGD, one step a call."""

    def __init__(self, device: str) -> None:
        import torchvision

        model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self._model: Any = torch.compile(model)

    def step(self, pictures: torch.Tensor, labels: torch.Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._model(pictures), labels)
        loss.backward()
        self._optimizer.step()

    def pictures_a_second(self, batches: Iterator[Any], steps: int, used: dict[str, list[float]], name: str) -> float:
        """Trains for `steps`, and returns the rate; notes in `used` how much of a CPU this process took."""
        for pictures, labels in itertools.islice(batches, 5):
            self.step(pictures, labels)
        torch.cuda.synchronize()
        cpu_s, elapsed = time.process_time(), stopwatch()
        for pictures, labels in itertools.islice(batches, steps):
            self.step(pictures, labels)
        torch.cuda.synchronize()
        took_s = elapsed()
        used.setdefault(name, []).append((time.process_time() - cpu_s) / took_s)
        return steps * BATCH / took_s


def training(device: str, rounds: int, steps: int, workers: int) -> None:
    dataset, crop = Pictures(SAMPLES, PICTURE, STORED), transform().to(device)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": workers}

    def by_hand(loader: DataLoader[Any]) -> Iterator[Any]:
        for pictures, labels in endless(loader):
            yield crop(pictures.to(device, non_blocking=True)), labels.to(device, non_blocking=True)

    def resident() -> Iterator[Any]:
        pictures = dataset.data[:BATCH].to(device)
        labels = torch.arange(BATCH, device=device)
        while True:
            yield crop(pictures), labels

    theirs = DataLoader(dataset, pin_memory=True, persistent_workers=True, **common)
    ring: dict[str, Any] = {"device": device, "device_transform": transform(), "buffer": RING_BATCHES}
    with own_daemon(workers=workers), PrefetchLoader(dataset, **common, **ring) as ours:
        model = Training(device)
        used: dict[str, list[float]] = {}
        streams = {"prefetchd": endless(ours), "DataLoader": by_hand(theirs), "resident data": resident()}
        runs: dict[str, Callable[[], float]] = {
            name: functools.partial(model.pictures_a_second, stream, steps, used, name)
            for name, stream in streams.items()
        }
        for run in runs.values():
            run()  # compiles, starts workers, registers slots
        used.clear()
        figures = interleave(rounds, runs)
        waited_s = ours.stats()["waited_s"]
        del runs, streams
    goals = {"resident data": REACH_TRAINING, "DataLoader": None}
    report(f"ResNet-50, {workers} workers", "img/s", figures, "prefetchd", goals)
    for name, shares in used.items():
        print(f"  CPU of the trainer's process, {name}: {statistics.median(shares):.2f}")
    print(f"  prefetchd waited {waited_s:.2f} s in all: more than a little, and the workers did not keep up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", choices=["correctness", "copies", "latency", "training"])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"There is no CUDA device here (torch {torch.__version__}): nothing was checked, nothing measured.")
        sys.exit(1)
    device = f"cuda:{torch.cuda.current_device()}"
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}\n{describe_machine()}")
    with own_daemon():
        wrong = check(device)
    for line in wrong or ["correctness: batches on the device are those of the CPU, by each way"]:
        print(line, flush=True)
    if wrong:
        sys.exit(2)
    if arguments.only in (None, "copies"):
        copies(device, arguments.rounds)
    if arguments.only in (None, "latency"):
        latency(device)
    if arguments.only in (None, "training"):
        training(device, arguments.rounds, arguments.steps, arguments.workers)


if __name__ == "__main__":
    main()
