"""Does a trainer get every batch, once and whole, whatever dies of its daemon and of a Ray cluster? As root: a cluster
of two nodes on this machine, in a network of its own.

python -m benchmarks.remote_chaos [--kills N] [--seed S]

One trainer takes batch after batch and compares each with the one that is made in its own process. Meanwhile there die,
by SIGKILL and by chance: the daemon, which is started again; its bridge; its workers; actors; their workers; a node's
raylet, after which another node joins; the head, after which there is another cluster; and whoever passes a kill point
of bridges or actors. In a round one to MOST_AT_ONCE of them die within a few batches. A round begins when remote
workers have made batches since the last one, or have made none for MOST_BATCHES_BETWEEN batches. Any other batch than
expected, or anything that is left at the end, makes the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from prefetchd_client import PrefetchLoader

from benchmarks.chaos.kill_log import kills_by_point
from benchmarks.harness import endless, stopwatch
from prefetchd.kill_points.kill_point_table import POINTS
from prefetchd.kill_points.kill_points import LOG_VARIABLE, ORDERS_VARIABLE, write_order
from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, runtime_paths
from tests.cluster.datasets import Slow
from tests.cluster.ray_nodes import RayNodes, enter_a_network_of_its_own, ray_cluster

NODES = 2
REMOTE_WORKERS = 4
AT_A_POINT = "at a kill point"
# How often each dies, one to another. A head takes its whole cluster along, and half a minute.
VICTIMS = {
    "worker here": 10,
    "worker there": 10,
    AT_A_POINT: 10,
    "actor": 5,
    "bridge": 5,
    "daemon": 5,
    "node": 2,
    "head": 1,
}
MOST_AT_ONCE = 6
KILL_POINTS = [each for each in POINTS if each.startswith(("bridge.", "actor."))]
# A process passes these once, at its start: one that runs already has to die before another can.
AT_THE_START = {"bridge.open": "bridge", "actor.loaded": "actor"}
MOST_PASSINGS = 8
MOST_BATCHES_BETWEEN = 1500
MOST_BATCHES_UNTIL_PASSED = 300


class Order:
    """The one order that all processes of the cluster and of the daemon follow, and which of them have died of any."""

    def __init__(self, directory: Path) -> None:
        self._path, self._log, self._number = directory / "order", directory / "kills", 0
        write_order(self._path, 0)
        # Of this process it is too late: it has imported prefetchd.
        os.environ.update({ORDERS_VARIABLE: f"@{self._path}", LOG_VARIABLE: str(self._log)})

    def give(self, point: str, passings: int) -> None:
        """Whoever first passes the point so often dies there."""
        self._number += 1
        write_order(self._path, self._number, point, passings)

    def take_back(self) -> None:
        write_order(self._path, self._number)

    @property
    def is_done(self) -> bool:
        return Path(f"{self._path}.{self._number}").exists()

    @property
    def kills(self) -> Counter[str]:
        return kills_by_point(self._log)


class Stand:
    """The cluster and the daemon, as they are now. Directory `directory` has the daemon's socket and log."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self.order = Order(directory)
        self.paths = runtime_paths(directory / "d.sock")
        self._clusters = stack.enter_context(contextlib.ExitStack())
        self.nodes: RayNodes
        self.new_cluster()

    def new_cluster(self) -> None:
        self._clusters.close()
        self.nodes = self._clusters.enter_context(ray_cluster(NODES))

    def start(self) -> None:
        command = [sys.executable, "-m", "prefetchd", "run", "--detach", "--ray", self.nodes.address]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        subprocess.run([sys.executable, "-m", "prefetchd", "stop"], check=False, stdout=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        report = read_report(self.paths)
        return int(report.snapshot["daemon"]["pid"]) if report.snapshot is not None else 0

    @property
    def made_elsewhere(self) -> int:
        """The batches of remote workers, as this daemon counts them."""
        try:
            snapshot = read_report(self.paths).snapshot
        except ProtocolError:
            return 0
        streams = snapshot["streams"] if snapshot is not None else []
        return sum(node["batches"] for each in streams if each["remote"] for node in each["remote"]["nodes"])

    def kill(self, victim: str, chance: random.Random) -> bool:
        """Kills one such process, and brings what a person or an operator would bring instead. False when there is
        none."""
        if victim == "node":
            self.nodes.remove()
            self.nodes.add()
            return True
        if victim == "head":
            _kill([each for each in psutil.process_iter(["name"]) if each.info["name"] == "gcs_server"])
            self.new_cluster()
            # It knows the former address.
            self.stop()
            self.start()
            return True
        found = self._found(victim)
        if not found:
            return False
        _kill([chance.choice(found)])
        if victim == "daemon":
            self.start()
        return True

    def _found(self, victim: str) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess, ProtocolError):
            if victim == "actor":
                return RayNodes.actors()
            if victim == "worker there":
                below = [each for actor in RayNodes.actors() for each in actor.children(recursive=True)]
                return [each for each in below if _is_worker(each)]
            trainer = psutil.Process()
            daemon = psutil.Process(self.pid or trainer.pid)
            if victim == "daemon":
                return [daemon] if daemon != trainer else []
            below = daemon.children(recursive=True)
            if victim == "bridge":
                return [each for each in below if each.name() == "prefetchd-ray"]
            # Zygotes are forked from the trainer, or executed by the daemon.
            beside = {*below, *trainer.children(recursive=True)}
            return [each for each in beside if _is_worker(each) and each not in self._found("worker there")]
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("prefetchd-w")
    except psutil.NoSuchProcess:
        return False


def _kill(processes: list[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)


def loader(sample_s: float, remote_workers: int) -> Any:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "buffer": 64}
    return PrefetchLoader(Slow(sample_s=sample_s), remote_workers=remote_workers, **options)


class Trainer:
    """Takes batches, and compares each with what this process makes by itself."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._found = endless(stack.enter_context(loader(0.01, REMOTE_WORKERS)))
        with patch.dict(os.environ, PREFETCHD_INLINE="1"):
            self._expected = endless(stack.enter_context(loader(0.0, 0)))
        self.batches = 0
        self.wrong: list[int] = []

    def takes(self, batches: int) -> None:
        for x, y in itertools.islice(self._found, batches):
            with patch.dict(os.environ, PREFETCHD_INLINE="1"):
                expected_x, expected_y = next(self._expected)
            if not (x.equal(expected_x) and y.equal(expected_y)):
                self.wrong.append(self.batches)
            self.batches += 1


def kill_at_a_point(stand: Stand, trainer: Trainer, chance: random.Random) -> bool:
    """Lets somebody die at a kill point. False when nobody has passed it in MOST_BATCHES_UNTIL_PASSED batches."""
    point = chance.choice(KILL_POINTS)
    stand.order.give(point, 1 if point in AT_THE_START else chance.randint(1, MOST_PASSINGS))
    if point in AT_THE_START:
        stand.kill(AT_THE_START[point], chance)
    for _ in range(MOST_BATCHES_UNTIL_PASSED // 10):
        trainer.takes(10)
        if stand.order.is_done:
            return True
    stand.order.take_back()
    return stand.order.is_done


def wait_for_remote_workers(stand: Stand, trainer: Trainer) -> int:
    """Takes batches until remote workers have made some, or have not in MOST_BATCHES_BETWEEN. Returns how many they
    have made."""
    before, since = stand.made_elsewhere, 0
    for _ in range(MOST_BATCHES_BETWEEN // 10):
        trainer.takes(10)
        # A daemon that was started again counts from 0.
        now = stand.made_elsewhere
        since, before = since + max(0, now - before), now
        if since:
            break
    return since


def run(kills: int, seed: int) -> bool:
    """Returns True when every batch was right and nothing is left."""
    chance, killed, elsewhere, watch = random.Random(seed), Counter[str](), 0, stopwatch()
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        os.environ.update(PREFETCHD_SOCKET=f"{directory}/d.sock", XDG_STATE_HOME=name)
        stand = Stand(directory, stack)
        stack.callback(stand.stop)
        stand.start()
        trainer = Trainer(stack)
        while killed.total() < kills:
            elsewhere += wait_for_remote_workers(stand, trainer)
            for victim in chance.choices(list(VICTIMS), list(VICTIMS.values()), k=chance.randint(1, MOST_AT_ONCE)):
                trainer.takes(chance.randrange(20))
                if kill_at_a_point(stand, trainer, chance) if victim == AT_A_POINT else stand.kill(victim, chance):
                    killed[victim] += 1
                    wrong = f", {len(trainer.wrong)} of them wrong" if trainer.wrong else ""
                    print(f"  {killed.total():5} {victim:15} after {trainer.batches} batches{wrong}", flush=True)
        at_points = stand.order.kills
        trainer.takes(200)
        stack.close()
        instance = stand.paths.instance
        left = [each for each in os.listdir("/dev/shm") if each.startswith(f"{SEGMENT_PREFIX}{instance}-")]
    # Orphans that have ended are for who has taken them over.
    found = [each.info for each in psutil.process_iter(["name", "pid", "status"])]
    living = [each for each in found if each["status"] != psutil.STATUS_ZOMBIE]
    processes = [each for each in living if (each["name"] or "").startswith("prefetchd")]
    print(f"\n{killed.total()} kills in {watch():.0f} s: {dict(killed)}")
    print(f"at kill points: {dict(sorted(at_points.items()))}")
    print(
        f"{trainer.batches} batches, at least {elsewhere} of them made elsewhere; other than expected: {trainer.wrong}"
    )
    print(f"left: {left}, {processes}")
    return not trainer.wrong and not left and not processes


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").split("\n\n")[0].split()))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if why_not := enter_a_network_of_its_own():
        raise SystemExit(why_not)
    raise SystemExit(0 if run(arguments.kills, arguments.seed) else 1)


if __name__ == "__main__":
    main()
