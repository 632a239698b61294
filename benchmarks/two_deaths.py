"""How long does a batch take after two processes have died within a second?

    python -m benchmarks.two_deaths [--start fork|exec] [--between S ...] [--pairs A-B ...] [--every S --deaths N]

Kills each ordered pair of daemon, zygote, worker, environment zygote and trainer under a trainer that iterates, and
prints the longest wait for a batch after it. A killed trainer is started again at once: its wait begins then. With
`--every` the daemon alone is killed so often. Exits 1 when a wait was longer than a first batch from nothing and 3 s.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from prefetchd_demo.machine import describe_machine

from prefetchd.status.snapshot import read_report
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

ROLES = ("daemon", "zygote", "worker", "environment", "trainer")
ALLOWED_S = 3.0
SETTLED_BATCHES = 12
QUIET_S = 8.0
LONGEST_S = 180.0


class Trainer:
    """A trainer in a process of its own, and when its batches came."""

    def __init__(self, environment: dict[str, str], kind: str = "plain") -> None:
        self.began_s = time.monotonic()
        self.came_s: list[float] = []
        self.said: list[str] = []
        command = [sys.executable, "-m", "benchmarks.two_deaths_trainer", kind]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"batch"):
                self.came_s.append(time.monotonic())
            else:
                self.said.append(line.decode("utf-8", "replace").rstrip())

    def wait_for(self, batches: int) -> None:
        deadline_s = time.monotonic() + LONGEST_S
        while len(self.came_s) < batches:
            if time.monotonic() > deadline_s or self.process.poll() is not None:
                raise RuntimeError("\n".join(["the trainer gave up", *self.said[-20:]]))
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


def victim(role: str, paths: RuntimePaths, trainer: Trainer) -> int:
    """Returns a living process of that role, or 0."""
    if role == "trainer":
        return trainer.process.pid
    report = read_report(paths)
    if report.snapshot is None or report.state != "running":
        return 0
    daemon: int = report.snapshot["daemon"]["pid"]
    if role == "daemon":
        return daemon
    with contextlib.suppress(psutil.Error, IndexError):
        if role == "environment":
            return next((each.pid for each in psutil.Process(daemon).children() if each.name() == "prefetchd-env"), 0)
        workers = [each["pid"] for stream in report.snapshot["streams"] for each in stream["workers"]]
        alive = [pid for pid in workers if pid and psutil.pid_exists(pid)]
        if role == "worker":
            return alive[0]
        zygote = psutil.Process(alive[0]).parent()
        return zygote.pid if zygote is not None and zygote.name() == "prefetchd-zyg" else 0
    return 0


def kill(role: str, paths: RuntimePaths, trainer: Trainer, within_s: float) -> bool:
    """Kills a process of that role as soon as one is there. False when none came in time."""
    deadline_s = time.monotonic() + within_s
    while True:
        pid = victim(role, paths, trainer)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.01)


@contextlib.contextmanager
def a_place(start: str) -> Iterator[tuple[RuntimePaths, dict[str, str]]]:
    directory = Path(tempfile.mkdtemp(prefix="prefetchd-two-deaths-"))
    environment = dict(os.environ)
    environment |= {"PREFETCHD_SOCKET": str(directory / "d.sock"), "XDG_STATE_HOME": str(directory)}
    environment["PREFETCHD_START"] = "exec" if start == "exec" else ""
    paths = runtime_paths(directory / "d.sock", environment)
    try:
        yield paths, environment
    finally:
        subprocess.run(
            [sys.executable, "-m", "prefetchd", "stop", "--now"], env=environment, capture_output=True, check=False
        )
        shutil.rmtree(directory, ignore_errors=True)


def longest_after(trainer: Trainer, since_s: float, quiet_s: float) -> float:
    """Returns the longest time without a batch after `since_s`, once batches have come for `quiet_s`."""
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        came = [each for each in list(trainer.came_s) if each > since_s]
        if came and time.monotonic() - since_s > quiet_s and time.monotonic() - came[-1] < 0.5:
            return max(b - a for a, b in itertools.pairwise([since_s, *came]))
        if trainer.process.poll() is not None:
            raise RuntimeError("\n".join(["the trainer gave up", *trainer.said[-20:]]))
        time.sleep(0.05)
    return LONGEST_S


def first_batch_s(start: str) -> float:
    with a_place(start) as (_, environment):
        trainer = Trainer(environment)
        try:
            trainer.wait_for(1)
            return trainer.came_s[0] - trainer.began_s
        finally:
            trainer.kill()


def pair_s(start: str, first: str, second: str, between_s: float) -> float | None:
    """Returns the longest wait after both deaths; None when there was no second process to kill."""
    with a_place(start) as (paths, environment):
        trainer = Trainer(environment)
        try:
            trainer.wait_for(SETTLED_BATCHES)
            if not kill(first, paths, trainer, 5.0):
                return None
            since_s = time.monotonic()
            if first == "trainer":
                trainer.kill()
                trainer = Trainer(environment)
                since_s = trainer.began_s
            time.sleep(between_s)
            if not kill(second, paths, trainer, max(0.0, since_s + 1.0 - time.monotonic())):
                return None
            if second == "trainer":
                trainer.kill()
                trainer = Trainer(environment)
                since_s = trainer.began_s
            return longest_after(trainer, since_s, QUIET_S)
        finally:
            trainer.kill()


def random_pairs(start: str, kind: str, pairs: int, seed: int) -> float:
    """Kills so many random pairs, one after another under one trainer, and prints those with long waits."""
    dice, longest_s, before = random.Random(seed), 0.0, ""
    with a_place(start) as (paths, environment):
        trainer = Trainer(environment, kind)
        try:
            trainer.wait_for(SETTLED_BATCHES)
            for _ in range(pairs):
                first, second = dice.choice(ROLES), dice.choice(ROLES)
                between_s = dice.random()
                since_s = time.monotonic()
                for role in (first, second):
                    if role == "trainer":
                        trainer.kill()
                        trainer = Trainer(environment, kind)
                        since_s = trainer.began_s
                    elif kill(role, paths, trainer, 0.7):
                        since_s = time.monotonic()
                    if role is first:
                        time.sleep(between_s)
                took_s = longest_after(trainer, since_s, 2.0)
                longest_s = max(longest_s, took_s)
                print(
                    f"{kind:>12} {first:>12} {second:>12} {between_s:4.2f} s apart: {took_s:5.1f} s{before}", flush=True
                )
                before = f"   (before: {first} {second})"
        finally:
            trainer.kill()
    return longest_s


def every_s(start: str, every_s: float, deaths: int) -> float:
    """Returns the longest wait while the daemon dies every `every_s`."""
    with a_place(start) as (paths, environment):
        trainer = Trainer(environment)
        try:
            trainer.wait_for(SETTLED_BATCHES)
            since_s = time.monotonic()
            for _ in range(deaths):
                kill("daemon", paths, trainer, every_s)
                time.sleep(every_s)
            return longest_after(trainer, since_s, QUIET_S)
        finally:
            trainer.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--start", choices=["fork", "exec"], default="fork")
    parser.add_argument("--between", type=float, nargs="*", default=[0.0, 0.4])
    parser.add_argument("--pairs", nargs="*", default=[f"{a}-{b}" for a in ROLES for b in ROLES])
    parser.add_argument("--every", type=float, default=0.0)
    parser.add_argument("--deaths", type=int, default=10)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(describe_machine())
    bound_s = first_batch_s(arguments.start) + ALLOWED_S
    print(f"a first batch from nothing and {ALLOWED_S:.0f} s: {bound_s:.1f} s", flush=True)
    longest_s = 0.0
    if arguments.random:
        longest_s = random_pairs(arguments.start, arguments.kind, arguments.random, arguments.seed)
        print(f"longest: {longest_s:.1f} s")
        return int(longest_s > bound_s)
    if arguments.every:
        longest_s = every_s(arguments.start, arguments.every, arguments.deaths)
        print(f"the daemon dies every {arguments.every:g} s: {longest_s:.1f} s", flush=True)
        return int(longest_s > bound_s)
    for pair in arguments.pairs:
        first, second = pair.split("-")
        for between_s in arguments.between:
            took_s = pair_s(arguments.start, first, second, between_s)
            told = "no such second process" if took_s is None else f"{took_s:5.1f} s"
            over = "   over" if (took_s or 0.0) > bound_s else ""
            print(f"{first:>12} {second:>12} {between_s:4.1f} s apart: {told}{over}", flush=True)
            longest_s = max(longest_s, took_s or 0.0)
    print(f"longest: {longest_s:.1f} s")
    return int(longest_s > bound_s)


if __name__ == "__main__":
    sys.exit(main())
