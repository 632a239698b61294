"""TrainerProcess starts a trainer, listens to it, and kills it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from prefetchd.wire.errors import CallerError, RemoteError
from prefetchd_demo.trainer_messages import Ended, Failed, Message, Plan, decode, encode_plan


class TrainerProcess:
    """Runs a trainer in a process group of its own: a terminal's Ctrl-C does not reach it, kill() reaches its workers
    too. A context manager, after which the trainer is gone."""

    def __init__(self, plan: Plan, environment: Mapping[str, str]) -> None:
        self.started_at_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prefetchd_demo.training", encode_plan(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def messages(self) -> Iterator[Message]:
        """Yields the trainer's messages, up to its Ended, which is left out. Raises CallerError with the trainer's
        words when it says that it failed, RemoteError when it ends without a message."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = decode(line)
            if isinstance(message, Ended):
                return
            if isinstance(message, Failed):
                raise CallerError(message.message)
            yield message
        raise RemoteError(f"the trainer ended with exit code {self._await_end()}; what it said is above")

    def kill(self) -> None:
        """Sends SIGKILL to the trainer and its workers, as the kernel does when memory is short. Idempotent."""
        if self._process.returncode is None:
            # Only a process that was not waited for yet still lends its group the name.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _await_end(self) -> int:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.kill()
        return int(self._process.returncode)
