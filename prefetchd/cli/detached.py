"""Runs a daemon that detaches itself from whoever starts it: `prefetchd run --detach`, and what loaders start.

Loaders run this module by itself, as a first batch waits for it: the library of the command line would take a quarter
of the time that the daemon takes.

    python -m prefetchd.cli.detached SOCKET IDLE_EXIT_S [CONFIG] [< ENVIRONMENT]

ENVIRONMENT, a file, is that of a loader which is about to be made (messages.TrainerEnvironment).
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    # Looking through what is imported would take a tenth of the start; all of it stays.
    gc.disable()

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from prefetchd.daemon.config.daemon_config import NO_CONFIG
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.main import Options, run_daemon
from prefetchd.daemon.start_record import StartRecord, as_arguments, read_record
from prefetchd.supervisor.cpu_limits import usable_cpus
from prefetchd.wire.errors import DaemonUnavailableError, PrefetchdError
from prefetchd.wire.runtime_paths import (
    CONFIG_VARIABLE,
    METRICS_VARIABLE,
    RAY_VARIABLE,
    RuntimePaths,
    runtime_paths,
)

STARTED, ALREADY_RUNNING, FAILED = b"started", b"already", b"failed"
# Workers are as nice as the daemon: niceness yields to everybody, not to the trainer alone (decision 0113).
NICE = 0
LINGER_CRASH_S, LINGER_CLEAN_S = 600.0, 60.0
USAGE_ERROR = 2
"""The exit code of a command line that has an option that this prefetchd does not know."""

Number = TypeVar("Number", int, float)


def first_chosen(*choices: Number | None) -> Number:
    """Returns the first that somebody has chosen; the last one is always there."""
    return next(each for each in choices if each is not None)


def metrics_address(address: str | None) -> str | None:
    """Returns where metrics are answered, as a daemon can use it that is in another directory; None: nowhere."""
    if address and address.startswith("unix:"):
        return f"unix:{os.path.abspath(address[5:])}"
    return address or None


def checked_cluster(address: str, *, insecure: bool) -> str:
    """Returns the address of the Ray cluster, which is empty for none. Raises CallerError when it cannot be one, or
    must be secure and is not."""
    if address and address != "auto":
        # Here: a daemon without a cluster is not to import it.
        from prefetchd.wire.cluster_address import check_security, resolve_address

        check_security(resolve_address(address, os.environ), os.environ, insecure=insecure)
    return address


def use_all_cpus() -> None:
    """Lets this process use all CPUs: a trainer that starts a daemon may be bound to a few; its loading should not
    be."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def run_detached(paths: RuntimePaths, options: Options) -> bool:
    """Starts a daemon. Returns once a daemon serves the socket: False when it is another one. Raises
    DaemonUnavailableError with what the daemon said."""
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(told)
        os._exit(_be_detached(paths, options, tell))
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read()
    if said not in (STARTED, ALREADY_RUNNING):
        raise DaemonUnavailableError(
            said.removeprefix(FAILED).decode("utf-8", "replace") or f"it died; see {paths.log}"
        )
    return said == STARTED


def _be_detached(paths: RuntimePaths, options: Options, tell: int) -> int:
    os.setsid()
    # Nothing of whoever started us may be kept open or busy: not a shell's pipes and locks, not a mounted directory.
    os.chdir("/")
    os.closerange(3, tell)
    os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)

    def say(what: bytes) -> None:
        os.write(tell, what)
        os.close(tell)

    try:
        if not run_daemon(paths, options, lambda: say(STARTED)):
            say(ALREADY_RUNNING)
    except (PrefetchdError, OSError) as error:
        say(FAILED + str(error).encode())
        return 1
    finally:
        sys.stdout.flush()
    return 0


def _from_stdin() -> bytes:
    """Reads all of stdin, if it is a file; of anything else nothing is read."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(0).st_mode):
            return os.pread(0, os.fstat(0).st_size, 0)
    return b""


def _given(idle_exit_s: float) -> dict[str, Any]:
    """Returns what `prefetchd run` is to be told to start a daemon like one that is started here."""
    metrics = metrics_address(os.environ.get(METRICS_VARIABLE))
    chosen = {"metrics": metrics, "ray": os.environ.get(RAY_VARIABLE)}
    return {"idle_exit": idle_exit_s, "reset_affinity": True} | {name: value for name, value in chosen.items() if value}


def _start_as_before(paths: RuntimePaths, record: StartRecord, config: str) -> int:
    """Starts a daemon with the options that the last one on the socket had, unless variables of this process say
    otherwise. Returns the exit code of `prefetchd run --detach`."""
    variables = dict(os.environ)
    if record.variables and not variables.get(RAY_VARIABLE):
        variables = {name: value for name, value in variables.items() if not name.startswith("RAY_")}
        variables |= record.variables
    said = {"ray": os.environ.get(RAY_VARIABLE), "metrics": metrics_address(os.environ.get(METRICS_VARIABLE))}
    options = {**record.options, **{name: value for name, value in said.items() if value}}
    command = [sys.executable, "-m", "prefetchd", "run", "--detach", "--socket", os.fspath(paths.socket)]
    command += ["--config", config] if config else []
    return subprocess.run([*command, *as_arguments(options)], env=variables, check=False).returncode


def main(socket: str, idle_exit_s: str, config: str = "") -> int:
    """Starts a daemon. Returns the exit code: 0 when a daemon serves the socket now; else 1, and why on stdout."""
    try:
        use_all_cpus()
        paths = runtime_paths(socket)
        found = NO_CONFIG
        config = config or os.environ.get(CONFIG_VARIABLE, "")
        record = read_record(paths)
        if record is not None:
            code = _start_as_before(paths, record, config or record.config)
            # A daemon of another version may have had options that this one lacks.
            if code != USAGE_ERROR:
                return code
        if config:
            from prefetchd.daemon.config.config_file import read_config

            found = read_config(Path(config))
        settings = found.daemon
        is_insecure = bool(settings.ray_insecure)
        cluster = checked_cluster(os.environ.get(RAY_VARIABLE) or settings.ray or "", insecure=is_insecure)
        options = Options(
            Limits(
                settings.workers or 0,
                usable_cpus(),
                first_chosen(settings.linger_clean_s, LINGER_CLEAN_S),
                first_chosen(settings.linger_s, LINGER_CRASH_S),
                autotune=settings.autotune is not False,
                remote=bool(cluster),
            ),
            nice=first_chosen(settings.nice, NICE),
            memory_bytes=settings.memory_bytes,
            worker_memory_bytes=settings.worker_memory_bytes,
            linger_bytes=settings.linger_bytes,
            ray=cluster,
            ray_insecure=is_insecure,
            idle_exit_s=first_chosen(settings.idle_exit_s, float(idle_exit_s)),
            log_file=paths.log,
            metrics=metrics_address(os.environ.get(METRICS_VARIABLE)),
            config=found,
            config_file=Path(os.path.abspath(config)) if config else None,
            history=Path(settings.history) if settings.history else None,
            environment=_from_stdin(),
            given=_given(float(idle_exit_s)),
        )
        run_detached(paths, options)
    except PrefetchdError as error:
        print(f"prefetchd: {error}")
        return 1
    # Whoever started us waits for our end: nothing here needs to be taken down.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main(*sys.argv[1:]))
