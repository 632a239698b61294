"""A worker process: takes fill tasks from the daemon's socket, one after another, until the socket ends."""

from __future__ import annotations

import socket

import torch

from prefetchd.wire.framing import close_all, receive_with_fds, send
from prefetchd.wire.messages import Fill, Filled, Ready, UseRing
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.fill import Filler, UserCodeError, load_failed
from prefetchd.workers.program import Program
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.task_runner import Result, TaskRunner
from prefetchd.workers.torch_worker import as_torch_worker

REPORT_AT_ONCE_US = 1000
"""Results of shorter tasks wait for the next one, if there is one already, and travel together."""


def run_worker(sock: socket.socket, spec: StreamSpec, program: Program, place: int, workers: int) -> None:
    """Serves `sock` until its end. Called once, in a process of its own."""
    torch.set_num_threads(1)
    with as_torch_worker(spec, program, place, workers):
        try:
            filler = Filler(spec, program, SampleSeeder(lazy=True))
            filler.init_worker(place)
        except UserCodeError as error:
            send(sock, load_failed(error))
            return
        send(sock, Ready())
        Worker(sock, TaskRunner(filler)).serve()


class Worker:
    """The loop over tasks."""

    def __init__(self, sock: socket.socket, runner: TaskRunner) -> None:
        self._sock = sock
        self._runner = runner
        self._results: list[Result] = []
        self._results_us = 0

    def serve(self) -> None:
        """Until end of file. Blocks."""
        while True:
            message, fds = receive_with_fds(self._sock)
            if message is None:
                return
            if isinstance(message, UseRing):
                self._runner.use_ring(fds[0], message.layout)
            elif isinstance(message, Fill):
                self._fill(message)
            else:
                close_all(fds)

    def _fill(self, message: Fill) -> None:
        last = len(message.tasks) - 1
        for place, task in enumerate(message.tasks):
            answer = self._runner.run(task)
            if isinstance(answer, tuple):
                self._results.append(answer)
                self._results_us += answer[2]
                if place == last or self._results_us >= REPORT_AT_ONCE_US:
                    self._report()
            else:
                self._report()
                send(self._sock, answer)

    def _report(self) -> None:
        if self._results:
            send(self._sock, Filled(tuple(self._results)))
            self._results = []
            self._results_us = 0
