"""Real daemons for tests, and the check that nothing of them is left."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from click.testing import CliRunner

from prefetchd.cli import stop
from prefetchd.processes.bootstrap import BOOTSTRAP, BRIDGE_BOOTSTRAP
from prefetchd.status.snapshot import read_report
from prefetchd.wire import process_environment
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, RuntimePaths, runtime_paths
from tests.forking.client import close_servers, forked_interpreters
from tests.forking.huge_pages import collapse_memory

GONE_WITHIN_S = 20.0
MISSING = re.compile(r"could not import '|is not installed$")
NEEDS_ROOT = "only root can become another user"
"""Why an attack is skipped that takes a second uid."""
UNSEEDED = 1 << 40
"""A seed such as torch begins with."""

LONGEST_FIRST = (
    "trainers",
    "reference",
    "compatibility",
    "strangers",
    "sample_cache",
    "documents",
    "cluster",
    "dashboard",
    "scenario",
    "attacks",
    "contract",
    "property",
    "unit",
)
"""Directories by how long a file of theirs takes: of several processes none is to be at a long one when the others are
done."""

SLOW = (
    "trainers/test_transformers.py",
    "trainers/test_docs.py",
    "reference",
    "compatibility",
    "strangers",
    "cluster",
    "dashboard",
    "timed",
)
"""Directories and files of which each test is marked `slow`: others' programs and libraries, and DataLoader beside
ours."""

NOT_SLOW = "not slow"
"""What `make test` says with -m."""

# A shell that runs this in the background has SIGINT ignored, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

_kill, _owner = os.kill, os.getpid()


def _kill_one(pid: int, number: int) -> None:
    """os.kill(), but to no group: a status that has no pid yet says 0, and that signal would end the run without a
    word."""
    assert pid > 0 or os.getpid() != _owner, f"signal {number} to {pid} would go to all tests"
    _kill(pid, number)


os.kill = _kill_one

_instances: dict[str, RuntimePaths] = {}
"""The daemons of this run: others on the machine have segments too."""

PACKAGES_VARIABLE = "PREFETCHD_TESTS_PACKAGES"
"""Set to "all" by `make test`, which installs them: a test that a missing package would skip fails, and so does an
attack that is skipped for want of a second uid where root runs it."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves what is slow out before it is imported: its libraries take seconds, and make each fork dear."""
    if config.option.markexpr == NOT_SLOW and _is_below(SLOW, collection_path):
        return True
    return None


def _is_below(places: Iterable[str], path: Path) -> bool:
    here = Path(__file__).parent
    return any(path.is_relative_to(here / each) for each in places)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow, and orders it. Stable: the order within a file, and of a directory's files, stays."""
    here = Path(__file__).parent
    order = {here / directory: place for place, directory in enumerate(LONGEST_FIRST)}
    for item in items:
        if _is_below(SLOW, item.path):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: min((order[each] for each in item.path.parents if each in order), default=-1))


@pytest.fixture(autouse=True)
def no_loaders_before() -> None:
    """Each test's loaders are the first of their process."""
    beginnings = sys.modules.get("prefetchd_client.loader.beginnings")
    if beginnings is not None:
        beginnings.forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures of whatever scope included."""
    preloads = item.get_closest_marker("preloads")
    forked = forked_interpreters(*(preloads.args if preloads is not None else ()))
    with contextlib.nullcontext() if item.get_closest_marker("executed") else forked:
        return (yield)


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
        _instances[self.paths.instance] = self.paths

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
        """The daemon, its zygotes and its workers, whoever their parent is now; not what zygotes fork for a moment."""
        return [each for each in self._all_processes() if _name(each) not in ("", "prefetchd-help")]

    def _all_processes(self) -> list[psutil.Process]:
        self._note_pid()
        parents = {str(pid) for pid in self._pids}
        found = [process for process in _forked_processes() if self.paths.process_mark in _memory_files(process)]
        for process in _interpreters():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                command = process.cmdline()
                # Executed zygotes are told their parent's pid, and their forks keep the command line.
                child = BOOTSTRAP in command[2:3] and command[5] in parents
                child = child or (BRIDGE_BOOTSTRAP in command[2:3] and command[4] in parents)
                ours = str(self.socket) in command or process.environ().get("PREFETCHD_SOCKET") == str(self.socket)
                if child or (ours and ("prefetchd" in command or "prefetchd.cli.detached" in command)):
                    found.append(process)
                    parents.add(str(process.pid))
        return found

    def kill_all(self) -> None:
        """SIGKILL to each of its processes, and to what they fork meanwhile; all are gone when this returns."""
        while found := self.processes():
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=10)

    def _note_pid(self) -> None:
        with contextlib.suppress(ProtocolError):
            report = read_report(self.paths)
            if report.snapshot is not None:
                self._pids.add(int(report.snapshot["daemon"]["pid"]))

    def stop_and_check(self) -> None:
        """Stops it if it runs; whatever is left then is an error."""
        deadline_s = time.monotonic() + GONE_WITHIN_S
        empty_looks = 0
        while True:
            # One that a closed loader has asked for may only be starting. One that was killed has left its record.
            if self.socket.exists() or self.paths.start_record.exists():
                # The verb, in this process: another one would take longer than most daemons' ends.
                CliRunner().invoke(stop.command, ["--socket", str(self.socket)], env={**self.environment})
            left = self._all_processes()
            # One look may miss a daemon that is forked during it by what has ended when the look comes there.
            is_starting = self.paths.start_lock.exists()
            empty_looks = 0 if left or is_starting else empty_looks + 1
            if empty_looks == 2 or time.monotonic() > deadline_s:
                break
            psutil.wait_procs(left, timeout=0.1)
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
def listening() -> Iterator[str]:
    """HOST:PORT of somebody who answers, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of the test's own; clients find it without being told. It starts when one needs it."""
    with _zygotes_of_torch_alone(), running_daemon(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for a module's tests: its zygote imports torch but once."""
    with _zygotes_of_torch_alone(), running_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@contextlib.contextmanager
def _zygotes_of_torch_alone() -> Iterator[None]:
    """Other tests in this process have imported packages that zygotes would have ready, and no stream here needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_environment, "PRELOADED", ("numpy", "torch"))
        yield


@pytest.fixture(scope="module", autouse=True)
def former_objects_are_left_aside() -> None:
    """What has been imported, and lives still after other modules' tests, lives as long as the run: the gc goes through
    a module's own objects alone, here and in forked children. Memory is in huge pages, so that forks are cheap."""
    gc.collect()
    gc.freeze()
    collapse_memory()


@pytest.fixture(autouse=True)
def unseeded() -> None:
    """A loader's default seed is what torch.manual_seed() was given: not by a test before."""
    torch, request = sys.modules.get("torch"), sys.modules.get("prefetchd_client.loader.stream_request")
    if torch is not None:
        torch.manual_seed(UNSEEDED if request is None else request._SEED_OF_NOBODY)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """The whole run leaves no segment, no socket, no lock and no process."""
    yield
    close_servers()
    ours = tuple(f"{SEGMENT_PREFIX}{instance}-" for instance in _instances)
    segments = [name for name in os.listdir("/dev/shm") if name.startswith(ours)]
    sockets = [paths.socket for paths in _instances.values()]
    # Whatever a daemon or its clients keep beside the socket is called after it.
    files = [str(file) for socket in sockets for file in socket.parent.glob(f"{socket.name}*")]
    assert not segments, f"segments left behind: {segments}"
    assert not files, f"files left behind: {files}"
    assert not (processes := _processes_of(set(map(str, sockets)))), f"processes left behind: {processes}"


def _name(process: psutil.Process) -> str:
    """What it is called; empty once it is gone."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def _forked_processes() -> Iterator[psutil.Process]:
    """Those that were forked from a trainer, and what they have forked."""
    for process in _interpreters("prefetchd-"):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _interpreters(*names: str) -> Iterator[psutil.Process]:
    """The processes whose names begin with one of `names`, by default those of Python and ours. It is asked several
    times a test, and all others are most."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").startswith(names or ("python", "prefetchd")):
                yield psutil.Process(pid)


def _memory_files(process: psutil.Process) -> set[str]:
    """The names of those that the process holds."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.scandir(f"/proc/{process.pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(fd.path)
                if link.startswith("/memfd:"):
                    found.add(link.removeprefix("/memfd:").split()[0])
    return found


def _processes_of(sockets: set[str]) -> list[list[str]]:
    """The command lines of this process's descendants, and of all that were told one of the sockets."""
    descendants = {each.pid for each in psutil.Process().children(recursive=True)}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = process.pid in descendants or process.environ().get("PREFETCHD_SOCKET") in sockets
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline()[:4])
    return found


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _unless_all_are_to_run((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _unless_all_are_to_run((yield))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Who runs the tests without rights is told what that leaves out."""
    count = sum(NEEDS_ROOT in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if count:
        terminalreporter.line(f"{count} attacks were skipped: {NEEDS_ROOT}. Run tests/attacks as root", yellow=True)


Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)


def _unless_all_are_to_run(report: Report) -> Report:
    """The report, or a failure where all packages are to be there and one is not, or root has not become another
    user."""
    if report.skipped and os.environ.get(PACKAGES_VARIABLE) == "all":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MISSING.search(reason) or (NEEDS_ROOT in reason and os.geteuid() == 0):
            report.outcome = "failed"
            report.longrepr = f"{reason} ({PACKAGES_VARIABLE}=all)"
    return report
