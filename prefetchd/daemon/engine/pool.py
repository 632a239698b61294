"""The workers of all streams: who gets which task, who starts, who retires. Pure.

`limit` bounds the workers that are busy at once over all streams. Each stream keeps workers of its own; the
neediest stream is served first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping

from prefetchd.daemon.engine.batches import Batch, Piece
from prefetchd.daemon.engine.commands import Assign, Command, GrowRing, LendRing, Log, StartWorker, StopWorker
from prefetchd.daemon.engine.stream import Stage, StreamState, Worker, WorkerStage
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Fill, Filled, FillFailed, Measured, Message, Unfit
from prefetchd.wire.remote_exception import RemoteException, encode_exception

MOST_DEATHS_A_BATCH = 4
MOST_DEATHS_AT_START = 3

FailStream = Callable[[StreamState, str, str], None]


class Pool:
    """Hands fill tasks to workers and takes their answers."""

    def __init__(
        self,
        limit: int,
        retire_after_s: float,
        streams: MutableMapping[int, StreamState],
        commands: list[Command],
        fail_stream: FailStream,
    ) -> None:
        self.limit = limit
        self.workers: dict[int, Worker] = {}
        self._retire_after_s = retire_after_s
        self._streams = streams
        self._commands = commands
        self._fail_stream = fail_stream
        self._next_worker = 1
        self._next_task = 1

    # --- giving tasks ---

    def dispatch(self) -> None:
        """Gives every worker what it can take, the neediest stream first."""
        assigned: dict[Worker, list[tuple[int, ...]]] = {}
        running = [stream for stream in self._streams.values() if stream.stage is Stage.RUNNING]
        while running:
            stream = _neediest(running)
            if stream is None:
                break
            worker = self._worker_for(stream)
            if worker is None:
                if self._is_full(stream) and len(self._streams) > 1:
                    # The others must not keep their workers' queues full while the neediest waits for one to end.
                    break
                running.remove(stream)
                continue
            piece = stream.filling.next_piece(worker.number, stream.pieces)
            if piece is not None:
                assigned.setdefault(worker, []).append(self._task(worker, piece))
            elif self._worker_for(stream) in (worker, None):
                # Else it has found room for a batch that another worker keeps: then that one is next.
                running.remove(stream)
        for worker, tasks in assigned.items():
            self._commands.append(Assign(worker.number, Fill(tuple(tasks))))
        self._start_workers()

    def _worker_for(self, stream: StreamState) -> Worker | None:
        """The worker that keeps a waiting batch, else an idle one if the limit allows one more busy one, else the one
        with the shortest queue."""
        most = stream.tasks_a_worker
        free = [each for each in stream.workers.values() if each.stage is WorkerStage.READY and len(each.tasks) < most]
        if not free:
            return None
        retainers = stream.filling.retainers()
        best: Worker | None = None
        for worker in free:
            if worker.number in retainers:
                best = worker
                break
            if best is None or len(worker.tasks) < len(best.tasks):
                best = worker
        if best is not None and not best.busy and self._is_full(stream):
            return None
        return best

    def _task(self, worker: Worker, piece: Piece) -> tuple[int, ...]:
        task = self._next_task
        self._next_task += 1
        worker.tasks[task] = piece
        batch = piece.batch
        slot = batch.grant.slot if batch.grant is not None else 0
        return (task, piece.kind, *batch.position, piece.first, piece.end, slot)

    def _is_full(self, stream: StreamState) -> bool:
        """True when no more workers may be busy for `stream`. One that has a consumer does not wait for those that have
        none: what they are at may never end."""
        counted = self.workers.values()
        if stream.lingers:
            return sum(worker.busy for worker in counted) >= self.limit
        return sum(worker.busy and not worker.stream.lingers for worker in counted) >= self.limit

    def _start_workers(self) -> None:
        for stream in self._streams.values():
            wanted = stream.worker_limit(self.limit)
            if stream.stage is not Stage.RUNNING or len(stream.workers) >= wanted or stream.filling.need() is None:
                continue
            while len(stream.workers) < wanted:
                places = {each.place for each in stream.workers.values()}
                place = next(each for each in range(wanted) if each not in places)
                worker = Worker(self._next_worker, stream, place)
                self._next_worker += 1
                self.workers[worker.number] = stream.workers[worker.number] = worker
                self._commands.append(StartWorker(stream.number, worker.number, place, wanted))

    # --- what comes back ---

    def worker_ready(self, number: int, now_s: float) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.stage is not WorkerStage.STARTING:
            return
        worker.stage = WorkerStage.READY
        worker.stream.cut_anew()
        worker.idle_since_s = now_s
        worker.stream.deaths_at_start = 0
        if worker.stream.window.ring is not None and not worker.has_ring:
            self._commands.append(LendRing(number, worker.stream.number))
            worker.has_ring = True

    def worker_message(self, number: int, message: Message, now_s: float) -> StreamState | None:
        """The stream that the answer was about, or None when the worker is gone."""
        worker = self.workers.get(number)
        if worker is None:
            return None
        if isinstance(message, Filled):
            for task, payload_bytes, duration_us, samples in message.tasks:
                self._filled(worker, self._take(worker, task), payload_bytes, duration_us, samples)
        elif isinstance(message, Measured):
            self._measured(worker, self._take(worker, message.task), message)
        elif isinstance(message, Unfit):
            self._unfit(worker, self._take(worker, message.task), message)
        elif isinstance(message, FillFailed):
            if worker.stream.filling.failed(self._take(worker, message.task), message.error):
                worker.stream.counters.failed += 1
        else:
            raise ProtocolError(f"a worker does not send {type(message).__name__}")
        if not worker.busy:
            worker.idle_since_s = now_s
        return worker.stream

    def worker_died(self, number: int, how: str) -> None:
        """The worker's rows go to others."""
        worker = self.workers.pop(number, None)
        if worker is None:
            return
        stream = worker.stream
        stream.workers.pop(number, None)
        stream.cut_anew()
        stream.filling.release_retainer(number)
        if worker.stage is WorkerStage.STOPPING and not worker.tasks:
            return
        stream.counters.worker_deaths += 1
        self._log("warning", "worker died", stream=stream.name, worker=number, how=how, tasks=len(worker.tasks))
        if worker.stage is WorkerStage.STARTING:
            stream.deaths_at_start += 1
            if stream.deaths_at_start >= MOST_DEATHS_AT_START:
                text = f"{stream.deaths_at_start} workers in a row died before they were ready: {how}"
                self._fail_stream(stream, "stream_failed", text)
                return
        # The task at hand is the oldest; the others only waited behind it.
        for place, piece in reversed(list(enumerate(worker.tasks.values()))):
            batch = piece.batch
            batch.deaths += place == 0
            if batch.deaths >= MOST_DEATHS_A_BATCH:
                stream.filling.failed(piece, _died_too_often(piece, how, batch.deaths))
            else:
                stream.filling.lost(piece)

    def _take(self, worker: Worker, task: int) -> Piece:
        piece = worker.tasks.pop(task, None)
        if piece is None:
            raise ProtocolError(f"worker {worker.number} answers task {task}, which it was not given")
        return piece

    def _filled(self, worker: Worker, piece: Piece, payload_bytes: int, duration_us: int, samples: int) -> None:
        stream = worker.stream
        counters = stream.counters
        stream.timed(max(1, piece.rows), duration_us / 1e6)
        counters.tasks += 1
        counters.fill_us += duration_us
        counters.samples += samples
        stream.host_deaths = 0
        if stream.filling.filled(piece, payload_bytes):
            counters.batches += 1
            counters.payload_bytes += payload_bytes

    def _measured(self, worker: Worker, piece: Piece, message: Measured) -> None:
        stream = worker.stream
        stream.batch_bytes = message.payload_bytes
        stream.layout = message.layout
        stream.filling.measured(piece, worker.number, by_rows=bool(message.layout), pieces=stream.pieces)

    def _unfit(self, worker: Worker, piece: Piece, message: Unfit) -> None:
        stream = worker.stream
        ring = stream.window.ring
        if not message.payload_bytes:
            stream.counters.deviations += 1
            stream.filling.deviates(piece)
            return
        assert ring is not None
        span = -(-message.payload_bytes // stream.slot_bytes)
        if span > stream.most_slots // 2:
            error = _too_large(piece.batch, message.payload_bytes, stream.most_slots * stream.slot_bytes)
            if stream.filling.failed(piece, error):
                stream.counters.failed += 1
            return
        stream.filling.too_large(piece, span, worker.number)
        batches = stream.spec.buffer_batches
        most = stream.most_slots
        wanted = min(most, max(2 * span, math.ceil(batches * ring.mean_span))) if batches else most
        if wanted > stream.wanted_slots:
            stream.wanted_slots = wanted
            self._commands.append(GrowRing(stream.number, wanted))

    def keep_ring_small(self, stream: StreamState) -> None:
        """The ring cannot have more slots than are reserved: batches that wait for more room than there will be
        fail."""
        ring = stream.window.ring
        assert ring is not None
        stream.wanted_slots = stream.most_slots = ring.reserved
        for batch in stream.filling.wider_than(stream.most_slots // 2):
            size = batch.span * stream.slot_bytes
            stream.filling.refuse_room(batch, _too_large(batch, size, stream.most_slots * stream.slot_bytes))
            stream.counters.failed += 1

    # --- going ---

    def retire_idle(self, now_s: float) -> None:
        """Stops workers beyond the limit that have been idle for long."""
        for worker in sorted(self.workers.values(), key=lambda each: each.idle_since_s):
            if len(self.workers) <= self.limit:
                return
            if self._is_retirable(worker) and worker.idle_since_s + self._retire_after_s <= now_s:
                self._stop(worker)

    def stop_workers(self, stream: StreamState) -> None:
        """Ends the stream's workers; their answers still come or their deaths."""
        for worker in list(stream.workers.values()):
            self._stop(worker)

    def forget_stream(self, stream: StreamState) -> None:
        """The stream is being dropped or parked; its zygote takes the workers with it."""
        for number in stream.workers:
            self.workers.pop(number, None)
        stream.workers.clear()

    def _is_retirable(self, worker: Worker) -> bool:
        return worker.stage is WorkerStage.READY and not worker.busy

    def _stop(self, worker: Worker) -> None:
        worker.stage = WorkerStage.STOPPING
        worker.stream.cut_anew()
        self._commands.append(StopWorker(worker.number))

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._commands.append(Log(level, event, tuple(fields.items())))


def _neediest(running: list[StreamState]) -> StreamState | None:
    """The stream that has something to fill and the fewest batches ahead of its consumers; those without one last."""
    if len(running) == 1:
        return running[0]
    needs = [
        (stream.lingers, need, stream.number, stream)
        for stream in running
        if (need := stream.filling.need()) is not None
    ]
    return min(needs)[3] if needs else None


def _too_large(batch: Batch, payload_bytes: int, ring_bytes: int) -> bytes:
    epoch, step = batch.position
    text = (
        f"the batch at epoch {epoch}, step {step} takes {payload_bytes} bytes; allowed: half of the ring's "
        f"{ring_bytes} bytes. Raise buffer="
    )
    return encode_exception(RemoteException("BatchTooLargeError", text, "", f"epoch {epoch}, step {step}"))


def _died_too_often(piece: Piece, how: str, deaths: int) -> bytes:
    epoch, step = piece.batch.position
    text = f"{deaths} workers died on the batch at epoch {epoch}, step {step}, rows {piece.first} to {piece.end}: {how}"
    return encode_exception(RemoteException("WorkerDiedError", text, "", f"epoch {epoch}, step {step}"))
