"""Runs the process that makes a declared stream's dataset and its first batch, for `prefetchd config check`."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from prefetchd.cli.fill_progress import LINE_EVERY_S, SHOWN_AFTER_S
from prefetchd.cli.patience import Patience
from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.daemon.declared.dataset_probe import declaration, variables
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.printable import one_line
from prefetchd.wire.stream_spec import StreamSpec, decode_spec

# As -c, with main()'s arguments. The module of an older prefetchd is not there, which is told like any other failure.
BOOTSTRAP = "import sys; from prefetchd_client.declared_look import main; main(*sys.argv[1:])"
LOOK_EVERY_S = 0.1
OUTPUT_LINES = 5
LINE_LIMIT_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Look:
    """What was found: the spec, and how long the first batch is and whether it is filled by rows; or why there is none.
    `is_late`: the time was over first. `output` are the last lines of what the user's code said. `software` is the
    version of prefetchd there."""

    spec: StreamSpec | None = None
    batch_bytes: int = 0
    by_rows: bool = False
    failure: str = ""
    is_late: bool = False
    output: tuple[str, ...] = ()
    software: str = ""
    cannot_start: bool = False


def look_at(stream: StreamConfig, directory: str, timeout_s: float) -> Look:
    """Makes the stream's dataset and first batch in a process of their own, as the daemon would, and ends it with all
    that it has started. `directory` is the configuration's. Blocks for `timeout_s` at most, and says on stderr what it
    waits for."""
    # A file for the output: a pipe that nobody reads along would be full at some time, and stop the dataset.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as request:
        request.write(json.dumps(declaration(stream)).encode())
        request.seek(0)
        said, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [stream.python or sys.executable, "-c", BOOTSTRAP, str(os.getpid()), str(theirs)],
                stdin=request,
                stdout=output,
                stderr=output,
                pass_fds=[theirs],
                cwd=stream.cwd or directory or "/",
                env=variables(stream),
                # killpg() reaches what the dataset has started, and not us.
                start_new_session=True,
            )
        except OSError as error:
            os.close(said)
            return Look(failure=f"{error.filename or stream.python}: {error.strerror}", cannot_start=True)
        finally:
            os.close(theirs)
        try:
            found = _Listening(stream.name, said).until(time.monotonic() + timeout_s)
        finally:
            os.close(said)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _looked(found, process.returncode, _last_lines(output))


class _Listening:
    """Gathers what the process says, until it has found something, ends, or takes too long."""

    def __init__(self, name: str, said: int) -> None:
        self._name = name
        self._said = said
        self._facts: dict[str, Any] = {"at": "starting its interpreter"}
        self._rest = b""
        self._told_s = time.monotonic() + SHOWN_AFTER_S - LINE_EVERY_S
        self._began_s = time.monotonic()

    def until(self, until_s: float) -> dict[str, Any]:
        """Returns the facts; with `late` when the time was over first."""
        with Patience(self._waits_for) as patience:
            while not self._is_found and len(self._rest) < LINE_LIMIT_BYTES:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return {**self._facts, "late": True}
                if select.select([self._said], [], [], min(LOOK_EVERY_S, left_s))[0]:
                    more = os.read(self._said, 1 << 16)
                    if not more:
                        break
                    self._take(more)
                patience.go_on(self._waits_for)
                self._tell_now_and_then()
        return self._facts

    @property
    def _is_found(self) -> bool:
        return "spec" in self._facts or "failed" in self._facts

    @property
    def _waits_for(self) -> str:
        return f"stream {self._name!r}: {self._facts['at']}"

    def _take(self, more: bytes) -> None:
        *lines, self._rest = (self._rest + more).split(b"\n")
        for line in lines:
            # The user's code may write there.
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                self._facts |= found if isinstance(found, dict) else {}

    def _tell_now_and_then(self) -> None:
        """Says it in a line where no terminal shows it."""
        now_s = time.monotonic()
        if not sys.stderr.isatty() and now_s - self._told_s >= LINE_EVERY_S:
            self._told_s = now_s
            sys.stderr.write(one_line(f"{self._waits_for} ({now_s - self._began_s:.0f} s)") + "\n")
            sys.stderr.flush()


def _looked(found: dict[str, Any], returncode: int, output: tuple[str, ...]) -> Look:
    software = str(found.get("software", ""))
    if found.get("late"):
        return Look(failure=str(found["at"]), is_late=True, output=output, software=software)
    if "failed" in found:
        # The process says all of its error; what was printed before may say why.
        trace = tuple(str(found.get("trace", "")).splitlines()[-OUTPUT_LINES:])
        return Look(failure=str(found["failed"]), output=trace or output, software=software)
    if "spec" not in found:
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        return Look(failure=f"{found['at']}: its process has ended ({how})", output=output, software=software)
    try:
        spec = decode_spec(base64.b64decode(str(found["spec"])))
        batch_bytes, by_rows = int(found["batch_bytes"]), bool(found["by_rows"])
    except (ProtocolError, ValueError, KeyError, TypeError) as error:
        return Look(failure=f"what its process says is not understood: {error}", output=output, software=software)
    return Look(spec, batch_bytes, by_rows, output=output, software=software)


def _last_lines(output: IO[bytes]) -> tuple[str, ...]:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - (1 << 14)))
    lines = output.read().decode("utf-8", "replace").splitlines()
    return tuple(line for line in lines if line.strip())[-OUTPUT_LINES:]
