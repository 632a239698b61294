"""How soon does `prefetchd status` answer, and what does collecting it cost the daemon?

    python -m benchmarks.status [--rounds N] [--batches-per-s N]

The command is timed from its start to its end, interpreter included, beside a daemon with one stream. The daemon's CPU
is measured while a trainer takes batches at an even pace, with its tick (which collects, and looks after other things)
as it is and four times as often: a third of the difference is what the tick costs as it is. Once more with `--metrics`
and a scrape each second: the difference is what those cost.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from torch.utils.data import Dataset

from benchmarks.harness import endless, own_daemon
from prefetchd.status.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths

REACH_MS = 150.0
REACH_SHARE = 0.01
OVER_S = 10.0
OFTENER = 4
OFTENER_DAEMON = f"""
import sys
from prefetchd.daemon import service
service.STATUS_INTERVAL_S /= {OFTENER}
from prefetchd.cli.main import main
sys.argv = ["prefetchd", "run", "--detach", "--workers", "2"]
main()
"""


class Small(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), index)


def answer_ms(rounds: int) -> list[float]:
    """Returns the wall times of the command."""
    found = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "prefetchd", "status"], check=True, capture_output=True)
        found.append((time.perf_counter() - began_s) * 1000)
    return found


def daemon_share(batches_per_s: float) -> tuple[float, list[float]]:
    """Returns the daemon's CPU as a share of one core while a trainer takes batches at that pace, and the command's
    answers."""
    with PrefetchLoader(Small(), batch_size=16, shuffle=True, num_workers=2, buffer=32, stream="paced") as loader:
        stream = endless(loader)
        next(stream)
        snapshot = read_report(runtime_paths()).snapshot
        assert snapshot is not None
        daemon = psutil.Process(snapshot["daemon"]["pid"])
        before = daemon.cpu_times()
        began_s = time.perf_counter()
        for number in range(int(OVER_S * batches_per_s)):
            next(stream)
            time.sleep(max(0.0, began_s + (number + 1) / batches_per_s - time.perf_counter()))
        after = daemon.cpu_times()
        took_s = time.perf_counter() - began_s
        spent_s = after.user - before.user + after.system - before.system
        return spent_s / took_s, answer_ms(20)


@contextlib.contextmanager
def scraped(address: str) -> Iterator[None]:
    """Asks for the metrics each second while its block runs."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(1.0):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(address)
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while sock.recv(1 << 16):
                    pass

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches-per-s", type=float, default=100.0)
    options = parser.parse_args()
    prefetchd = [sys.executable, "-m", "prefetchd"]
    usual, often, asked, answers = [], [], [], []
    for number in range(options.rounds):
        with own_daemon(workers=2) as directory:
            share, found = daemon_share(options.batches_per_s)
            usual.append(share)
            answers += found
            subprocess.run([*prefetchd, "stop"], check=True, capture_output=True)
            subprocess.run([sys.executable, "-c", OFTENER_DAEMON], check=True)
            often.append(daemon_share(options.batches_per_s)[0])
            subprocess.run([*prefetchd, "stop"], check=True, capture_output=True)
            address = f"{directory}/metrics.sock"
            subprocess.run(
                [*prefetchd, "run", "--detach", "--workers", "2", "--metrics", f"unix:{address}"], check=True
            )
            with scraped(address):
                asked.append(daemon_share(options.batches_per_s)[0])
        print(
            f"  round {number + 1}: {usual[-1]:.2%} of a core, {OFTENER} times as often {often[-1]:.2%}, "
            f"scraped {asked[-1]:.2%}",
            flush=True,
        )
    each = statistics.median(high - low for low, high in zip(usual, often)) / (OFTENER - 1)
    scrapes = statistics.median(high - low for low, high in zip(usual, asked))
    print(f"\nstatus\n{describe_machine()}")
    print(
        f"  answer, interpreter included   median {statistics.median(answers):6.1f} ms, "
        f"slowest {max(answers):6.1f} ms   to reach: {REACH_MS:.0f}"
    )
    print(f"  daemon at {options.batches_per_s:.0f} batches/s        {statistics.median(usual):.2%} of a core")
    print(f"  of that, its tick              {each:.2%} of a core")
    print(f"  a scrape each second           {scrapes:.2%} of a core")
    print(f"  both                           {each + scrapes:.2%} of a core   to reach: {REACH_SHARE:.0%}")


if __name__ == "__main__":
    main()
