"""Daemons with a declared stream, in each store and with each source of progress."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefetchd_client import BatchDirectory, PrefetchLoader

from tests.conftest import Daemon
from tests.scenario.waiting import is_gone, stream_when, until

PROGRESS = ("socket", "file")
NAME = "train"


class Declared:
    """One stream called NAME, declared with `lines`, on a daemon that begins with start()."""

    def __init__(self, daemon: Daemon, directory: Path, ram_disk: Path, store: str, progress: str, lines: str) -> None:
        self.daemon = daemon
        self.store = store
        self.ram_disk = ram_disk
        self.progress = directory / "progress.txt"
        self.config = directory / "streams.toml"
        self._by_file = progress == "file"
        daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        self.declare(lines)

    def declare(self, lines: str) -> None:
        text = f"[streams.{NAME}]\n{lines}"
        if self.store != "shm":
            text += f'store = {{{self.store} = "{self.ram_disk}"}}\n'
        if self._by_file:
            text += f'progress = {{file = "{self.progress}"}}\n'
        self.config.write_text(text)

    def start(self) -> None:
        self.daemon.start("--config", str(self.config), "--workers", "2")

    def kill(self) -> None:
        pid = self.daemon.pid
        self.daemon.processes()
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid), "the daemon is dead")

    def when(self, holds=bool, what: str = "it is there") -> dict:
        return stream_when(self.daemon, NAME, holds, what)

    def when_ready(self, batches: int, what: str = "filled") -> dict:
        return self.when(lambda stream: stream["ring"] and stream["ring"]["ready"] >= batches, what)

    def at(self, epoch: int, step: int) -> None:
        """A trainer that knows nothing of us says where it is."""
        self.progress.write_text(f"{epoch}\n{step}\n")

    def files(self) -> list[str]:
        return sorted(path.name for path in self.ram_disk.glob("*.safetensors"))

    def attach(self) -> PrefetchLoader:
        return PrefetchLoader.attach(NAME)

    def directory(self, **arguments) -> BatchDirectory:
        return BatchDirectory(self.ram_disk, self.progress if self._by_file else None, timeout=30, **arguments)


@contextmanager
def ram_disk() -> Iterator[Path]:
    """A directory on a tmpfs, in the place of a RAM disk of its own."""
    path = Path(f"/dev/shm/prefetchd-test-disk-{uuid.uuid4().hex[:12]}")
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)
