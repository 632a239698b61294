"""What does `prefetchd dashboard` cost, and how soon does it and a report show something?

    python -m benchmarks.dashboard [--rounds N] [--batches-per-s N]

A trainer takes batches at an even pace. In turn, round after round, the daemon's CPU is measured with nothing beside
it, with `prefetchd status --watch`, with a dashboard without a page, and with a dashboard whose page asks each second,
so that the daemon traces. CPU is what the kernel counts for the daemon's threads, in nanoseconds. Then come the memory
of the dashboard's process, the time that a report takes, and, where chromium and chromedriver are installed, the first
paint of a page with 64 streams.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine

from benchmarks.harness import endless, own_daemon
from benchmarks.status import Small
from prefetchd.daemon.segments.status_segment import StatusSegment
from prefetchd.status.snapshot import read_report
from prefetchd.wire.messages import PROTOCOL_VERSION
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import runtime_paths
from tests.dashboard.browser import browsing, missing
from tests.unit.cli.examples import report, stream

OVER_S = 10.0
STREAMS = 64
REACH_SHARE, REACH_BYTES, REACH_REPORT_S, REACH_PAINT_MS = 0.005, 120 << 20, 3.0, 1000
PAINTED = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
LISTED = "return document.querySelectorAll('#streams tbody tr').length"
PREFETCHD = [sys.executable, "-m", "prefetchd"]


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a verb of prefetchd while the block runs."""
    with subprocess.Popen(
        [*PREFETCHD, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as found:
        try:
            yield found
        finally:
            found.terminate()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    with running("status", "--watch") as process:
        assert process.stdout is not None
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield


@contextlib.contextmanager
def dashboard() -> Iterator[tuple[str, int]]:
    """Run a dashboard; the block gets its URL and its pid."""
    with running("dashboard") as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid


@contextlib.contextmanager
def looked_at(memory: list[int]) -> Iterator[None]:
    """Run a dashboard and ask it each second, as its page does. Note its memory at the end."""
    ends = threading.Event()
    with dashboard() as (url, pid):
        base, _, token = url.partition("?")

        def ask() -> None:
            while not ends.wait(1.0):
                urllib.request.urlopen(f"{base}state?{token}&stream=").read()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
            memory.append(psutil.Process(pid).memory_info().rss)


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that the threads of a process have used, by the scheduler's count."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def daemon_shares(rounds: int, batches_per_s: float, memory: list[int]) -> dict[str, list[float]]:
    """Return the daemon's CPU as shares of one core, for each of the things beside it."""
    beside: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "nothing": contextlib.nullcontext,
        "status --watch": watched,
        "dashboard, no page": dashboard,
        "dashboard, a page": lambda: looked_at(memory),
    }
    found: dict[str, list[float]] = {name: [] for name in beside}
    with PrefetchLoader(Small(), batch_size=16, shuffle=True, num_workers=2, buffer=32, stream="paced") as loader:
        batches = endless(loader)
        next(batches)
        snapshot = read_report(runtime_paths()).snapshot
        assert snapshot is not None
        pid = snapshot["daemon"]["pid"]
        for number in range(rounds):
            for name, begin in beside.items():
                with begin():
                    take_s(batches, batches_per_s, 2.0)
                    before_s = cpu_s(pid)
                    took_s = take_s(batches, batches_per_s, OVER_S)
                    found[name].append((cpu_s(pid) - before_s) / took_s)
            print(
                f"  round {number + 1}: " + ", ".join(f"{name} {each[-1]:.2%}" for name, each in found.items()),
                flush=True,
            )
    return found


def take_s(batches: Iterator[object], batches_per_s: float, over_s: float) -> float:
    """Take batches at that pace for so many seconds. Return the seconds that it took."""
    began_s = time.perf_counter()
    for number in range(int(over_s * batches_per_s)):
        next(batches)
        time.sleep(max(0.0, began_s + (number + 1) / batches_per_s - time.perf_counter()))
    return time.perf_counter() - began_s


def report_s(path: Path) -> float:
    """Return the seconds from the command's start to its end, interpreter and the doctor's checks included."""
    began_s = time.perf_counter()
    subprocess.run([*PREFETCHD, "report", "-o", str(path)], check=True, capture_output=True)
    return time.perf_counter() - began_s


@contextlib.contextmanager
def many_streams() -> Iterator[None]:
    """Publish a status of 64 streams, as a daemon that this process is."""
    snapshot = report(*(stream(name=f"stream {number}") for number in range(STREAMS))).snapshot
    about = process_stat(os.getpid())
    assert snapshot is not None
    assert about is not None
    snapshot["daemon"] |= {"pid": os.getpid(), "start_ticks": about.start_ticks, "protocol": PROTOCOL_VERSION}
    segment = StatusSegment(runtime_paths(), 1)
    try:
        segment.write(snapshot)
        yield
    finally:
        segment.close()


def paint_ms() -> tuple[float, float]:
    """Return the browser's first-contentful-paint of a page that it opens for the first time, and when all streams are
    on it, both after navigation begins."""
    with tempfile.TemporaryDirectory() as scratch, dashboard() as (url, _), browsing(Path(scratch)) as browser:
        browser.open(url)
        while browser.run(LISTED) != STREAMS:
            time.sleep(0.02)
        listed = float(browser.run("return performance.now()"))
        while (painted := browser.run(PAINTED)) is None:
            time.sleep(0.02)
        return float(painted), listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches-per-s", type=float, default=100.0)
    options = parser.parse_args()
    memory: list[int] = []
    with own_daemon(workers=2) as directory:
        page = Path(directory, "report.html")
        shares = daemon_shares(options.rounds, options.batches_per_s, memory)
        reports = [report_s(page) for _ in range(options.rounds)]
        size = page.stat().st_size
        subprocess.run([*PREFETCHD, "stop"], check=True, capture_output=True)
        paints, large, large_s = [], 0, 0.0
        with many_streams():
            large_s = report_s(page)
            large = page.stat().st_size
            if not missing():
                paints = [paint_ms() for _ in range(options.rounds)]
    nothing = shares["nothing"]
    print(f"\ndashboard\n{describe_machine()}")
    for name, found in shares.items():
        more = statistics.median(high - low for low, high in zip(nothing, found))
        print(f"  daemon beside {name:20} {statistics.median(found):.2%} of a core, {more:+.2%}")
    print(f"  to reach: less than {REACH_SHARE:.1%} more")
    print(f"  dashboard's memory   {max(memory) / 2**20:.0f} MiB   to reach: {REACH_BYTES / 2**20:.0f}")
    print(
        f"  report               median {statistics.median(reports):.2f} s, {size / 1000:.0f} kB; of {STREAMS} streams "
        f"{large_s:.2f} s, {large / 1000:.0f} kB   to reach: {REACH_REPORT_S:.0f} s, 2 MB"
    )
    if paints:
        painted, listed = ([each[at] for each in paints] for at in (0, 1))
        print(
            f"  first paint, {STREAMS} streams   median {statistics.median(painted):.0f} ms, "
            f"slowest {max(painted):.0f} ms; all listed after {statistics.median(listed):.0f} ms, "
            f"slowest {max(listed):.0f} ms   to reach: {REACH_PAINT_MS}"
        )
    else:
        print(f"  first paint          not measured: {missing()}")


if __name__ == "__main__":
    main()
