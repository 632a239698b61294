"""What do workers on other machines bring, and what do they cost here? As root: a Ray cluster on this machine, in a
network of its own, whose one node has half of the CPUs, and all else the other half.

python -m benchmarks.remote [all] [throughput] [receiving] [frozen] [headless] [unused] [memory] [--rounds N] [--tls]

throughput   batches a second of workers on both halves, beside the workers of one half alone
receiving    CPU time to receive a GB, beside a bare TCP connection into memory; what the bridge has of it, the rest
             being Ray's; and how much a second
frozen       the longest next() while the node stands still, beside what one CPU here takes to make a batch
headless     batches a second where no cluster answers, beside those of a loader that asks for none
unused       CPU time of a daemon that knows a cluster which nobody asks for, beside one that knows none
memory       what a node has of memory for each of an actor's four workers, beside the same number here
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psutil
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from benchmarks.harness import endless, interleave, own_daemon, pss_mb, report, stopwatch
from prefetchd.remote.placement import CPUS_AN_ACTOR
from prefetchd.status.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths
from tests.cluster.ray_nodes import RayNodes, enter_a_network_of_its_own, ray_cluster
from tests.cluster.secured import make_certificates

SECTIONS = ("throughput", "receiving", "frozen", "headless", "unused", "memory")
BATCH = 32
RING_BATCHES = 64
COUNTED = 60
SAMPLE_SHAPE = (3, 224, 224)
BLOCK = bytes(1 << 20)
GB = 1e9
STORE_BYTES = 2 << 30


class Hashed(Dataset[torch.Tensor]):
    """Computes for some 5 ms for a sample of 150 kB, as a decoder of pictures does: 33 s a GB."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(8):
            hashlib.sha256(BLOCK).digest()
        return torch.full(SAMPLE_SHAPE, index % 256, dtype=torch.uint8)


class Waited(Dataset[torch.Tensor]):
    """Waits a little for a sample of 1.2 MB: as many GB as can be carried, and more than 5.5 s to fill each."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.008)
        return torch.full((2, *SAMPLE_SHAPE), index % 256, dtype=torch.float32)


class Tokens(Dataset[torch.Tensor]):
    """Waits as long for a sample of 1.2 MB: token ids, which travel as 16 bits."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.008)
        return torch.arange(index, index + 150_528) % 50_000


class Tiny(Dataset[torch.Tensor]):
    """Costs next to nothing: what is left is the daemon."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


@functools.cache
def halves() -> tuple[set[int], set[int]]:
    """Returns the CPUs in two halves: those here, and those of the node. To be asked first while all may be used."""
    cpus = sorted(os.sched_getaffinity(0))
    return set(cpus[: len(cpus) // 2]), set(cpus[len(cpus) // 2 :])


def remote(directory: Path) -> dict[str, Any]:
    """Returns what the one stream that asks for remote workers has of them."""
    snapshot = read_report(runtime_paths(directory / "d.sock")).snapshot
    assert snapshot is not None
    return next((each["remote"] for each in snapshot["streams"] if each["remote"] is not None), {})


def made(directory: Path) -> int:
    return sum(node["batches"] for node in remote(directory).get("nodes", ()))


@contextlib.contextmanager
def loading(dataset: Dataset[Any], workers: int, remote_workers: int, **options: Any) -> Iterator[Iterator[Any]]:
    """Yields the endless batches of a loader, on whose remote workers, if it asks for some, it has waited."""
    given: dict[str, Any] = {"batch_size": BATCH, "buffer": RING_BATCHES} | options
    with PrefetchLoader(dataset, num_workers=workers, remote_workers=remote_workers, **given) as loader:
        yield endless(loader)


def until_they_come(directory: Path, batches: Iterator[Any], batches_made: int = 8) -> None:
    while made(directory) < batches_made:
        next(batches)


def rate(batches: Iterator[Any]) -> float:
    """Returns batches a second over COUNTED of them, with the ring empty at first."""
    for _ in itertools.islice(batches, RING_BATCHES):
        pass
    watch = stopwatch()
    for _ in itertools.islice(batches, COUNTED):
        pass
    return COUNTED / watch()


# --- the sections -----------------------------------------------------------------------------------------------


def throughput(nodes: RayNodes, rounds: int) -> None:
    here, there = halves()

    def both() -> float:
        with own_daemon(ray=nodes.address) as directory, loading(Hashed(), len(here), len(there)) as batches:
            until_they_come(directory, batches)
            return rate(batches)

    def alone() -> float:
        with own_daemon(), loading(Hashed(), len(here), 0) as batches:
            return rate(batches)

    figures = interleave(rounds, {"here and there": both, "here alone": alone})
    report("samples of 5 ms of CPU, 150 kB each", "batches/s", figures, "here and there", {"here alone": 0.9 * 2})


def receiving(nodes: RayNodes, rounds: int) -> None:
    _, there = halves()
    rates: dict[str, list[float]] = {"from Ray": []}
    bridges: dict[str, list[float]] = {"the bridge": []}

    def from_ray(dataset: Dataset[torch.Tensor]) -> float:
        workers = min(4 * len(there), 16)
        with own_daemon(ray=nodes.address) as directory, loading(dataset, 2, workers, buffer=40) as batches:
            until_they_come(directory, batches)
            bridge = [each for each in psutil.process_iter() if each.name() == "prefetchd-ray"]
            # That of the head was the first.
            raylet = [each for each in psutil.process_iter() if each.name() == "raylet"][:1]
            bridge_s, raylet_s, before, watch = _cpu_s(bridge), _cpu_s(raylet), _bytes(directory), stopwatch()
            for _ in itertools.islice(batches, COUNTED):
                pass
            received = (_bytes(directory) - before) / GB
            bridge_s, raylet_s = _cpu_s(bridge) - bridge_s, _cpu_s(raylet) - raylet_s
            if isinstance(dataset, Waited):
                rates["from Ray"].append(received / watch())
                bridges["the bridge"].append(bridge_s / received)
            return (bridge_s + raylet_s) / received

    ways = {"from Ray": partial(from_ray, Waited()), "tokens": partial(from_ray, Tokens()), "bare TCP": _bare_tcp}
    figures = interleave(rounds, ways)
    report("CPU time to receive", "s/GB", figures, "from Ray", {"bare TCP": 5.0})
    report("of that, in the bridge", "s/GB", bridges, "the bridge", {})
    report("received meanwhile", "GB/s", rates, "from Ray", {})


def _bytes(directory: Path) -> int:
    return sum(node["bytes"] for node in remote(directory).get("nodes", ()))


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(each.cpu_times().user + each.cpu_times().system for each in processes)


def _bare_tcp() -> float:
    """Returns the CPU seconds that a GB costs who receives it from a TCP connection into memory."""
    size = 40 << 20
    with socket.create_server(("127.0.0.1", 0)) as server:

        def sends() -> None:
            with socket.create_connection(server.getsockname()) as sock:
                for _ in range(25):
                    sock.sendall(bytes(size))

        child = os.fork()
        if child == 0:
            sends()
            os._exit(0)
        connection, _ = server.accept()
        target = memoryview(bytearray(size))
        received, before_s = 0, time.process_time()
        while got := connection.recv_into(target[received % size :]):
            received += got
        connection.close()
        os.waitpid(child, 0)
        return (time.process_time() - before_s) / (received / GB)


def frozen(nodes: RayNodes, rounds: int) -> None:
    here, there = halves()
    made_here: dict[str, float] = {}

    def longest(batches: Iterator[Any]) -> float:
        """Returns the longest next() of a trainer that takes half as many batches again as can be made here."""
        step_s, most_s = made_here["s"] / len(here) / 1.5, 0.0
        for _ in range(2 * RING_BATCHES):
            watch = stopwatch()
            next(batches)
            most_s = max(most_s, watch())
            time.sleep(max(0.0, step_s - watch()))
        return most_s

    def one_batch() -> float:
        with own_daemon(), loading(Hashed(), len(here), 0) as batches:
            made_here["s"] = len(here) / rate(batches)
        return made_here["s"]

    def stands_still() -> float:
        with own_daemon(ray=nodes.address) as directory, loading(Hashed(), len(here), len(there)) as batches:
            until_they_come(directory, batches)
            longest(batches)
            actors = [each for one in RayNodes.actors() for each in [one, *one.children(recursive=True)]]
            for each in actors:
                each.suspend()
            try:
                return longest(batches)
            finally:
                for each in actors:
                    each.resume()

    figures = interleave(rounds, {"a batch made here": one_batch, "the node stands still": stands_still})
    report("the longest next()", "s", figures, "the node stands still", {"a batch made here": 1.0})


def headless(_nodes: RayNodes, rounds: int) -> None:
    here, _ = halves()

    def nobody_answers() -> float:
        with own_daemon(ray="127.0.0.1:1"), loading(Hashed(), len(here), 2) as batches:
            return rate(batches)

    def asks_for_none() -> float:
        with own_daemon(), loading(Hashed(), len(here), 0) as batches:
            return rate(batches)

    figures = interleave(rounds, {"no cluster answers": nobody_answers, "asks for none": asks_for_none})
    report("where no cluster answers", "batches/s", figures, "no cluster answers", {"asks for none": 1.0})


def unused(nodes: RayNodes, rounds: int) -> None:
    def cost(**options: Any) -> Callable[[], float]:
        def run() -> float:
            with own_daemon(**options) as directory, loading(Tiny(), 2, 0) as batches:
                snapshot = read_report(runtime_paths(directory / "d.sock")).snapshot
                assert snapshot is not None
                daemon = psutil.Process(snapshot["daemon"]["pid"])
                for _ in itertools.islice(batches, 1000):
                    pass
                before_s = _cpu_s([daemon])
                for _ in itertools.islice(batches, 20_000):
                    pass
                return 1e6 * (_cpu_s([daemon]) - before_s) / 20_000

        return run

    figures = interleave(rounds, {"knows a cluster": cost(ray=nodes.address), "knows none": cost()})
    report("CPU time of the daemon a batch", "us", figures, "knows a cluster", {"knows none": 1.01})


def memory(nodes: RayNodes, rounds: int) -> None:
    workers = CPUS_AN_ACTOR
    # One of which Ray takes for granted that it has so many.
    nodes.add(workers)

    def there() -> float:
        with own_daemon(ray=nodes.address) as directory, loading(Hashed(), 1, workers) as batches:
            until_they_come(directory, batches)
            assert remote(directory)["ready"] == workers
            (actor,) = RayNodes.actors()
            return sum(pss_mb(each.pid) for each in [actor, *actor.children(recursive=True)]) / workers

    def here() -> float:
        # Executed, as a node's are: a fork shares what the trainer has.
        with (
            patch.dict(os.environ, PREFETCHD_START="exec"),
            own_daemon() as directory,
            loading(Hashed(), workers, 0) as batches,
        ):
            for _ in itertools.islice(batches, RING_BATCHES):
                pass
            snapshot = read_report(runtime_paths(directory / "d.sock")).snapshot
            assert snapshot is not None
            below = psutil.Process(snapshot["daemon"]["pid"]).children(recursive=True)
            return sum(pss_mb(each.pid) for each in below) / workers

    figures = interleave(rounds, {"on a node": there, "here": here})
    report(f"memory of one of {workers} workers, with what they share", "MB", figures, "on a node", {"here": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").split("\n\n")[0].split()))
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", action="store_true", help="the cluster asks for a token, and encrypts")
    arguments = parser.parse_args()
    if why_not := enter_a_network_of_its_own():
        raise SystemExit(why_not)
    here, there = halves()
    os.sched_setaffinity(0, here)
    with contextlib.ExitStack() as ending:
        if arguments.tls:
            os.environ.update(make_certificates(Path(ending.enter_context(TemporaryDirectory()))))
        nodes = ending.enter_context(ray_cluster(0, STORE_BYTES))
        os.sched_setaffinity(0, there)
        nodes.add(len(there))
        os.sched_setaffinity(0, here)
        for name in SECTIONS if "all" in arguments.sections else arguments.sections:
            globals()[name](nodes, arguments.rounds)


if __name__ == "__main__":
    main()
