"""Does anything that comes in on the socket hurt the daemon, or the trainer that it serves?

    python -m benchmarks.fuzz [--messages N] [--seed S] [--children ROUNDS]

A trainer in a process of its own compares every batch with the oracle, while a crowd of peers sends random, truncated,
damaged and impossible messages; then, for so many rounds, datasets and samplers whose workers and planners say to the
daemon what none would. Exits 1 when the daemon died or grew, a batch was wrong, or the daemon's log has a traceback.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import psutil
from prefetchd_demo.machine import describe_machine

from benchmarks.harness import own_daemon
from prefetchd.status.snapshot import read_report
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths
from tests.scenario.fuzzed_trainer import FuzzedTrainer
from tests.scenario.fuzzing import Fuzz
from tests.scenario.wild_children import take_what_comes, wild_planners, wild_workers

BATCHES_OF_MESSAGES = 20
GROWTH_MB = 16.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--children", type=int, default=20)
    arguments = parser.parse_args()
    print(describe_machine())
    with own_daemon(workers=2):
        try:
            held = run(arguments.messages, arguments.seed)
            return 0 if wild_children(arguments.children, arguments.seed) and held else 1
        except OSError as error:
            print(f"the daemon is gone: {error}\n{last_words(runtime_paths().log)}")
            return 1


def run(messages: int, seed: int) -> bool:
    """Sends the messages. Returns True when nothing was wrong."""
    paths = runtime_paths()
    with FuzzedTrainer() as trainer:
        trainer.until_it_has_taken(50)
        report = read_report(paths)
        assert report.snapshot is not None
        daemon = psutil.Process(report.snapshot["daemon"]["pid"])
        fuzz = Fuzz(paths, seed, trainer.hello())
        before_fds, before_mb = daemon.num_fds(), memory_mb(daemon)
        before_batches, began_s = trainer.taken, time.monotonic()
        first_mb = before_mb
        try:
            for part in range(BATCHES_OF_MESSAGES):
                fuzz.send(messages // BATCHES_OF_MESSAGES)
                # Growth counts from here on: at first the daemon's heap finds its size.
                if part == 0:
                    first_mb = memory_mb(daemon)
                print(
                    f"  {fuzz.sent:9,} messages in {fuzz.sessions:8,} sessions, daemon {memory_mb(daemon):.1f} MB, "
                    f"{trainer.taken - before_batches} batches, {trainer.wrong or 'none'} wrong",
                    flush=True,
                )
        finally:
            fuzz.close()
        took_s = time.monotonic() - began_s
        trainer.until_it_has_taken(trainer.taken + 50)
        fds = fewest_fds(daemon, before_fds)
        last_mb, wrong, batches = memory_mb(daemon), trainer.wrong, trainer.taken - before_batches
    print(
        f"{fuzz.sent:,} messages in {fuzz.sessions:,} sessions, {fuzz.sent / took_s:,.0f} a second; {batches} batches, "
        f"{wrong or 'none'} wrong; the daemon's memory: {before_mb:.1f} MB before, {first_mb:.1f} after the first "
        f"{100 / BATCHES_OF_MESSAGES:.0f} %, {last_mb:.1f} MB at the end (at most {GROWTH_MB:.0f} more); descriptors: "
        f"{before_fds} before, {fds} at the end"
    )
    return not wrong and last_mb - first_mb <= GROWTH_MB and fds <= before_fds


def wild_children(rounds: int, seed: int) -> bool:
    """Runs wild workers and planners. Returns True when the daemon and another trainer did not mind what they said."""
    paths = runtime_paths()
    with FuzzedTrainer() as trainer:
        trainer.until_it_has_taken(50)
        pid = daemon_pid(paths)
        for number in range(seed, seed + rounds):
            for who, options in (("workers", wild_workers(number)), ("planners", wild_planners(number))):
                batches = take_what_comes(stream=f"wild {who} {number}", **options)
                print(f"  wild {who}, round {number}: {batches} batches came", flush=True)
        trainer.until_it_has_taken(trainer.taken + 50)
        wrong, survived = trainer.wrong, daemon_pid(paths) == pid
    faults = sum('"traceback"' in line for line in paths.log.read_text().splitlines())
    print(
        f"{rounds} rounds; the daemon {'lives' if survived else 'died'}; {wrong or 'none'} wrong; {faults} tracebacks"
    )
    return survived and not wrong and not faults


def daemon_pid(paths: RuntimePaths) -> int:
    report = read_report(paths)
    assert report.snapshot is not None
    return int(report.snapshot["daemon"]["pid"])


def last_words(log: Path) -> str:
    """Returns what the log ends with, tracebacks as they are."""
    return "\n".join(log.read_text().splitlines()[-8:]).replace("\\n", "\n") if log.exists() else "it has no log"


def memory_mb(process: psutil.Process) -> float:
    """Returns the memory that is the process's own (USS)."""
    return float(process.memory_full_info().uss) / 1e6


def fewest_fds(process: psutil.Process, wanted: int) -> int:
    """Returns the number of the process's descriptors, once there are no more than wanted, or after a while."""
    deadline_s = time.monotonic() + 20
    while (found := process.num_fds()) > wanted and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    sys.exit(main())
