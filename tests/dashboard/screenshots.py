"""Take the screenshots of README and docs: real runs on a daemon of their own, in a headless Chromium.

`python -m tests.dashboard.screenshots` writes docs/images/. It takes four minutes. Look at the pictures afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefetchd_client import PrefetchLoader

from tests.conftest import Daemon, daemon_aside
from tests.dashboard.browser import Browser, browsing, missing
from tests.dashboard.conftest import dashboard
from tests.timed.situations import Samples

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
MOST_BYTES = 200_000
MEASURED_S = 45.0
FORGOTTEN_S = 75.0
"""Seconds until the last minute has no step of the trainer."""
WIDE, LOW, PHONE = (1200, 1000), (1200, 620), (390, 844)


@contextmanager
def training(daemon: Daemon, stream: str, sample_s: float, step_s: float, steps: int = 1 << 30) -> Iterator[None]:
    """Run a trainer whose steps take step_s, and which pauses after its last step until the block ends."""
    ends = threading.Event()

    def train() -> None:
        data = Samples(sample_s, seldom_s=0.7, every=211)
        with PrefetchLoader(
            data, batch_size=16, num_workers=2, buffer=32, stream=stream, seed=1, socket=str(daemon.socket)
        ) as loader:
            for step, _ in enumerate(loader):
                if step >= steps or ends.wait(step_s):
                    break
            ends.wait()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def take(browser: Browser, name: str, size: tuple[int, int] = WIDE, *, mobile: bool = False) -> None:
    """Write what the page shows now to docs/images/."""
    browser.resize(*size, mobile=mobile)
    # What is drawn anew after a change of the size is drawn within a second.
    threading.Event().wait(2.5)
    picture = browser.screenshot()
    assert len(picture) < MOST_BYTES, f"{name}: {len(picture)} bytes"
    (IMAGES / f"{name}.png").write_bytes(picture)
    print(f"{name}.png: {len(picture) / 1000:.0f} kB")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory() as place,
        daemon_aside(Path(place)) as daemon,
        dashboard(daemon) as (url, _),
        browsing(Path(scratch)) as browser,
    ):
        browser.prefer("light")
        browser.open(url)
        with training(daemon, "imagenet/train.py", 0.001, 0.05, steps=20):
            threading.Event().wait(FORGOTTEN_S)
            take(browser, "idle")
        daemon.command("stop")
        with training(daemon, "imagenet/train.py", 0.002, 0.12):
            threading.Event().wait(MEASURED_S)
            take(browser, "busy")
        daemon.command("stop")
        with training(daemon, "imagenet/train.py", 0.012, 0.05):
            threading.Event().wait(MEASURED_S)
            take(browser, "stalled")
            browser.run("document.querySelector('#lanes').scrollIntoView()")
            take(browser, "minute", LOW)
            browser.run("scrollTo(0, 0)")
            browser.prefer("dark")
            take(browser, "phone", PHONE, mobile=True)
            browser.prefer("light")
            report = Path(place, "report.html")
            daemon.command("report", "--output", str(report))
        os.kill(daemon.pid, signal.SIGKILL)
        take(browser, "dead")
        browser.open(report.as_uri())
        take(browser, "report")
        daemon.start()


if __name__ == "__main__":
    if missing():
        sys.exit(missing())
    main()
