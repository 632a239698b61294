"""Runs a worker process: takes fill tasks from the daemon's socket, one after another, until the socket ends."""

from __future__ import annotations

import itertools
import socket

import torch

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.framing import close_all, disclose, receive_with_fds, send
from prefetchd.wire.messages import Fill, Ready, UseRing, UseSamples
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import IDLE
from prefetchd.workers.fill import Filler
from prefetchd.workers.import_phase import imports_noted
from prefetchd.workers.program import Program
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.shared_samples import SharedSamples
from prefetchd.workers.task_runner import TaskRunner
from prefetchd.workers.torch_worker import as_torch_worker
from prefetchd.workers.user_code import UserCodeError, load_failed
from prefetchd.workers.worker_status_writer import map_worker_status


def run_worker(
    sock: socket.socket, spec: StreamSpec, program: Program, worker_index: int, workers: int, note_fd: int
) -> None:
    """Serves `sock` until its end. Called once, in a process of its own."""
    torch.set_num_threads(1)
    note = map_worker_status(note_fd)
    with as_torch_worker(spec, program, worker_index, workers):
        try:
            filler = Filler(spec, program, SampleSeeder(lazy=True), note, SharedSamples(note_fd))
            with imports_noted(note):
                filler.init_worker(worker_index)
        except UserCodeError as error:
            send(sock, load_failed(error))
            return
        note.phase(IDLE)
        kill_point("worker.initialised")
        send(sock, Ready())
        runner = TaskRunner(filler)
        runner.watch_files()
        Worker(sock, runner).serve()


class Worker:
    """Runs the loop over tasks."""

    def __init__(self, sock: socket.socket, runner: TaskRunner) -> None:
        self._sock = sock
        self._runner = runner

    def serve(self) -> None:
        """Serves until end of file. Blocks."""
        while True:
            message, fds = receive_with_fds(self._sock)
            if message is None:
                return
            message, fds = disclose(message, fds)
            if isinstance(message, UseRing):
                self._runner.use_ring(fds[0], message.layout)
                kill_point("worker.ring.mapped")
            elif isinstance(message, UseSamples):
                self._runner.use_samples(fds[0])
            elif isinstance(message, Fill):
                self._fill(message)
            else:
                close_all(fds)

    def _fill(self, message: Fill) -> None:
        # Each answer before the next task: that one may be slow, or end this process.
        for row, keys in zip(message.tasks, message.keys or itertools.repeat(b"")):
            kill_point("worker.task.begun")
            task = FillTask.from_row(row)
            answer = self._runner.run(task, keys)
            for aside in self._runner.asides(task.number):
                send(self._sock, aside)
            kill_point("worker.answer.untold")
            send(self._sock, answer)
            kill_point("worker.answer.told")
