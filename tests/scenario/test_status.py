"""Status of pipelines that really run: the verdict finds what was made slow, and the live screen shows it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from prefetchd.status.snapshot import read_report
from tests.scenario.waiting import stopped, until

WITHIN_S = 60.0


class Slow(Dataset[torch.Tensor]):
    """Samples that take `sample_s` each, without a CPU."""

    def __init__(self, sample_s: float) -> None:
        self.sample_s = sample_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sample_s)
        return torch.full((16,), index)


def status(daemon):
    return json.loads(daemon.command("status", "--json").stdout)["streams"]


def verdict_when_there_is_one(daemon, loader, step_s):
    """Takes batches, `step_s` each, until status has a verdict on the stream."""
    until_s = time.monotonic() + WITHIN_S
    looked_s = 0.0
    for _ in loader:
        time.sleep(step_s)
        now_s = time.monotonic()
        if now_s - looked_s > 1:
            looked_s = now_s
            recents = [each["recent"] for each in read_report(daemon.paths).snapshot["streams"]]
            if not any(recent and recent["over_s"] > 5 for recent in recents):
                # The command takes its time, and the ring is full again by then.
                continue
            found = status(daemon)[-1]
            if found["verdict"]["limit"] != "none" and found["recent"]["over_s"] > 5:
                return found
        assert now_s < until_s, "no verdict"
    raise AssertionError("the epoch has ended")


def test_a_slow_dataset_is_the_limit_and_more_workers_are_named(daemon):
    daemon.start("--workers", "2")
    with PrefetchLoader(Slow(0.04), batch_size=8, buffer=12, stream="slow dataset") as loader:
        found = verdict_when_there_is_one(daemon, loader, step_s=0.02)
    verdict = found["verdict"]
    # On a machine that has other work the CPU is what they lack.
    assert verdict["limit"] in ("waiting", "foreign load", "cpu", "daemon"), found
    # 8 samples of 40 ms each by two workers are 160 ms a batch at best; what the trainer does takes 20.
    assert verdict["stalled_share"] > 0.3, found
    assert verdict["workers_wanted"] is None or verdict["workers_wanted"] >= 3, found
    assert found["recent"]["empty_share"] > found["recent"]["full_share"]


def test_a_slow_trainer_is_the_limit_and_its_ring_is_full(daemon):
    daemon.start("--workers", "2")
    with PrefetchLoader(Slow(0.001), batch_size=4, buffer=8, stream="slow trainer") as loader:
        found = verdict_when_there_is_one(daemon, loader, step_s=0.1)
        # What takes long stays unknown, and on a busy machine anything may.
        until(lambda: any(each["pss_bytes"] for each in status(daemon)[-1]["workers"]), "a worker's memory is known")
    assert found["verdict"]["limit"] == "trainer", found
    assert found["recent"]["full_share"] > 0.5, found
    assert found["runway_s"] > 0.2, found
    assert all(0 <= each["busy_share"] <= 1 for each in found["workers"]), found


@contextlib.contextmanager
def on_a_terminal(
    daemon, *arguments: str, size: tuple[int, int] = (40, 80)
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a terminal of its own, of so many lines and columns, and our end of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "prefetchd", *arguments],
        env={**daemon.environment, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def shown_until(ours: int, text: str) -> str:
    """What the terminal was sent up to `text`, less what is not text."""
    sent = b""
    until_s = time.monotonic() + WITHIN_S
    while text not in (plain := re.sub(r"\x1b[\[(][0-9;?]*[A-Za-z]", "", sent.decode("utf-8", "replace"))):
        readable, _, _ = select.select([ours], [], [], until_s - time.monotonic())
        assert readable, plain
        sent += os.read(ours, 65536)
    return plain


def test_the_live_screen_shows_streams_at_80_columns_and_ends_with_ctrl_c(daemon):
    daemon.start("--workers", "1")
    with (
        PrefetchLoader(Slow(0.001), batch_size=4, buffer=8, stream="live") as loader,
        on_a_terminal(daemon, "status", "--watch", "--interval", "0.2") as (process, ours),
    ):
        iterator = iter(loader)
        next(iterator)
        shown = shown_until(ours, "ready, 1 s each")
        assert "live  sequential, batch 4" in shown
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0


@pytest.mark.parametrize("key", ["q", "Q"])
def test_the_live_screen_ends_with_q_and_gives_the_terminal_back(daemon, key):
    daemon.start()
    with on_a_terminal(daemon, "status", "--watch") as (process, ours):
        before = termios.tcgetattr(ours)
        shown_until(ours, "q quits")
        os.write(ours, b"x")
        os.write(ours, key.encode())
        assert process.wait(WITHIN_S) == 0
        assert termios.tcgetattr(ours) == before


def test_a_small_screen_has_what_limits_the_stream(daemon):
    """Found as a screen of 60 by 16 that ended before it."""
    daemon.start()
    with (
        PrefetchLoader(Slow(0.001), batch_size=4, buffer=8, num_workers=4, stream="live") as loader,
        on_a_terminal(daemon, "status", "--watch", "--interval", "0.2", size=(16, 60)) as (_, ours),
    ):
        for _ in zip(range(20), loader):
            pass
        shown = shown_until(ours, "  > ")
        assert "live  sequential, batch 4" in shown
        assert "q quits" in shown_until(ours, "q quits")


def test_the_live_screen_goes_on_when_the_daemon_dies(daemon):
    daemon.start()
    pid = daemon.pid
    with on_a_terminal(daemon, "status", "--watch", "--interval", "0.1") as (process, ours):
        shown_until(ours, "healthy")
        os.kill(pid, signal.SIGKILL)
        shown_until(ours, "the daemon is dead")
        assert process.poll() is None
    daemon.start()


def test_the_live_screen_tells_of_a_daemon_that_hangs_and_that_it_goes_on(daemon):
    daemon.start()
    with on_a_terminal(daemon, "status", "--watch", "--interval", "0.1") as (process, ours):
        shown_until(ours, "healthy")
        with stopped(daemon):
            shown_until(ours, "the daemon hangs: its last sign of life is")
            assert process.poll() is None
        shown_until(ours, "healthy")


def test_watching_and_json_exclude_each_other(daemon):
    done = daemon.command("status", "--watch", "--json", check=False)
    assert done.returncode == 2
    assert "--watch" in done.stderr
