"""A worker process: takes fill tasks from the daemon's socket, one after another, until the socket ends."""

from __future__ import annotations

import socket
import time
from typing import Any

import torch
import torch.utils.data._utils.collate as torch_collate
import torch.utils.data._utils.worker as torch_worker

from prefetchd.wire.framing import close_all, receive_with_fds, send
from prefetchd.wire.messages import (
    FILL_ROWS,
    MEASURE,
    Fill,
    Filled,
    FillFailed,
    LoadFailed,
    Measured,
    Message,
    Ready,
    Unfit,
    UseRing,
)
from prefetchd.wire.remote_exception import encode_exception
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import decode_slot_record
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.fill import Filler, UserCodeError, remote_exception, user_code
from prefetchd.workers.program import Program
from prefetchd.workers.row_collate import Deviation

REPORT_AT_ONCE_US = 1000
"""Results of shorter tasks wait for the next one, if there is one already, and travel together."""


def run_worker(sock: socket.socket, spec: StreamSpec, program: Program, place: int, workers: int) -> None:
    """Serves `sock` until its end. Called once, in a process of its own."""
    torch.set_num_threads(1)
    _be_a_torch_worker(spec, program, place, workers)
    try:
        if program.worker_init_fn is not None:
            with user_code(f"worker_init_fn({place})"):
                program.worker_init_fn(place)
        worker = Worker(sock, Filler(spec, program))
    except UserCodeError as error:
        send(sock, LoadFailed(str(error)[:2000], encode_exception(remote_exception(error))))
        return
    send(sock, Ready())
    worker.serve()


class Worker:
    """The loop over tasks, and the ring that they go to."""

    def __init__(self, sock: socket.socket, filler: Filler) -> None:
        self._sock = sock
        self._filler = filler
        self._ring: RingMemory | None = None
        self._results: list[tuple[int, ...]] = []
        self._results_us = 0

    def serve(self) -> None:
        """Until end of file. Blocks."""
        while True:
            message, fds = receive_with_fds(self._sock)
            if message is None:
                return
            if isinstance(message, UseRing):
                self._use_ring(message, fds[0])
            elif isinstance(message, Fill):
                self._fill(message)
            else:
                close_all(fds)

    def _use_ring(self, message: UseRing, fd: int) -> None:
        self._ring = RingMemory(fd)
        if message.layout:
            self._filler.use_layout(message.layout)

    def _fill(self, message: Fill) -> None:
        last = len(message.tasks) - 1
        for place, row in enumerate(message.tasks):
            begin_us = _now_us()
            answer = self._do(row)
            if isinstance(answer, int):
                took_us = _now_us() - begin_us
                self._results.append((row[0], answer, took_us, row[5] - row[4]))
                self._results_us += took_us
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

    def _do(self, row: tuple[int, ...]) -> int | Message:
        """The payload's bytes when the task is done, else what is to be said instead."""
        task, kind, epoch, step, first, end, slot = row
        position = (epoch, step)
        try:
            if kind == MEASURE:
                measure = self._filler.measure(position, end)
                return Measured(task, measure.payload_bytes, measure.layout)
            ring = self._ring
            assert ring is not None
            if kind == FILL_ROWS:
                return self._filler.fill_rows(position, first, end, ring.batch(slot))
            span = decode_slot_record(ring.memory, ring.header.slot_record_offset(slot)).span  # type: ignore[arg-type]
            room = span * ring.header.slot_bytes
            payload_bytes = self._filler.fill_whole(position, end, room, lambda: ring.batch(slot, span))
            return payload_bytes if payload_bytes <= room else Unfit(task, payload_bytes, "larger than its slots")
        except Deviation as deviation:
            return Unfit(task, 0, str(deviation)[:500])
        except UserCodeError as error:
            return FillFailed(task, encode_exception(remote_exception(error)))


def _be_a_torch_worker(spec: StreamSpec, program: Program, place: int, workers: int) -> None:
    """get_worker_info answers as in DataLoader's workers; default_collate stays out of shared memory.

    In a DataLoader worker default_collate stacks into a new shared segment a tensor; here the stack is copied into
    the slot, so it belongs into ordinary memory.
    """
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=place, num_workers=workers, seed=spec.seed, dataset=program.dataset
    )
    collate_tensors = torch_collate.default_collate_fn_map[torch.Tensor]

    def collate_privately(batch: Any, *, collate_fn_map: Any = None) -> Any:
        info, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return collate_tensors(batch, collate_fn_map=collate_fn_map)
        finally:
            torch_worker._worker_info = info

    torch_collate.default_collate_fn_map[torch.Tensor] = collate_privately


def _now_us() -> int:
    return time.monotonic_ns() // 1000
