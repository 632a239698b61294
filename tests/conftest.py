"""Real daemons for tests, and the check that nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from prefetchd.cli.snapshot import read_report
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, RuntimePaths, runtime_paths
from prefetchd.workers.zygote_children import BOOTSTRAP

GONE_WITHIN_S = 20.0
UNSEEDED = 1 << 40
"""A seed that is too large to be a user's choice: as torch begins."""

_instances: set[str] = set()
"""The daemons of this run: others on the machine have segments too."""


class Daemon:
    """A daemon on a socket of its own, with everything that belongs to it."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o700)
        self.socket = directory / "d.sock"
        self.environment = dict(
            os.environ, PREFETCHD_SOCKET=str(self.socket), XDG_STATE_HOME=str(directory), PREFETCHD_INLINE=""
        )
        self.paths: RuntimePaths = runtime_paths(self.socket, self.environment)
        self._pids: set[int] = set()
        _instances.add(self.paths.instance)

    def command(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs `prefetchd` with these arguments against this daemon."""
        self._note_pid()
        return subprocess.run(
            [sys.executable, "-m", "prefetchd", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout,
        )

    def start(self, *arguments: str) -> None:
        self.command("run", "--detach", *arguments)

    @property
    def pid(self) -> int:
        report = read_report(self.paths)
        assert report.snapshot is not None, "no daemon runs"
        return int(report.snapshot["daemon"]["pid"])

    def segments(self) -> list[str]:
        """Its shared memory, in use or left behind."""
        prefix = f"{SEGMENT_PREFIX}{self.paths.instance}-"
        return sorted(name for name in os.listdir("/dev/shm") if name.startswith(prefix))

    def processes(self) -> list[psutil.Process]:
        """The daemon, its zygotes and its workers, whoever their parent is now."""
        self._note_pid()
        parents = {str(pid) for pid in self._pids}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                command = process.cmdline()
                # Zygotes are told their parent's pid, and their forks keep the command line.
                child = BOOTSTRAP in command[2:3] and command[5] in parents
                ours = str(self.socket) in command or process.environ().get("PREFETCHD_SOCKET") == str(self.socket)
                if child or (ours and "prefetchd" in command):
                    found.append(process)
                    parents.add(str(process.pid))
        return found

    def _note_pid(self) -> None:
        with contextlib.suppress(ProtocolError):
            report = read_report(self.paths)
            if report.snapshot is not None:
                self._pids.add(int(report.snapshot["daemon"]["pid"]))

    def stop_and_check(self) -> None:
        """Stops it if it runs; whatever is left then is an error."""
        if self.socket.exists():
            self.command("stop", check=False)
        psutil.wait_procs(self.processes(), timeout=GONE_WITHIN_S)
        left = self.processes()
        for process in left:
            process.kill()
        segments = self.segments()
        for name in segments:
            os.unlink(f"/dev/shm/{name}")
        assert not left, f"processes left behind: {[each.cmdline()[:6] for each in left]}"
        assert not segments, f"segments left behind: {segments}"
        assert not self.socket.exists(), "the socket is left behind"
        assert not self.paths.lock.exists(), "the lock file is left behind"
        assert not self.paths.start_lock.exists(), "the start lock is left behind"


@contextlib.contextmanager
def running_daemon(directory: Path) -> Iterator[Daemon]:
    """A daemon that clients find without being told."""
    with daemon_aside(directory) as daemon, pytest.MonkeyPatch.context() as patch:
        for name in ("PREFETCHD_SOCKET", "XDG_STATE_HOME"):
            patch.setenv(name, daemon.environment[name])
        yield daemon


@contextlib.contextmanager
def daemon_aside(directory: Path) -> Iterator[Daemon]:
    """A daemon that clients must be told of with socket=."""
    daemon = Daemon(directory)
    try:
        yield daemon
    finally:
        daemon.stop_and_check()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of the test's own; clients find it without being told. It starts when one needs it."""
    with running_daemon(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for a module's tests: its zygote imports torch but once."""
    with running_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@pytest.fixture(autouse=True)
def unseeded() -> None:
    """A loader's default seed is what torch.manual_seed() was given: not by a test before."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(UNSEEDED)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """The whole run leaves no segment and no child."""
    yield
    ours = tuple(f"{SEGMENT_PREFIX}{instance}-" for instance in _instances)
    left = [name for name in os.listdir("/dev/shm") if name.startswith(ours)]
    children = [each.cmdline()[:4] for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    assert not left, f"segments left behind: {left}"
    assert not children, f"children left behind: {children}"
