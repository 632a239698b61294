"""The workers of all streams: who gets which task, who starts, who retires. Pure.

`limit` bounds the workers that are busy at once over all streams. Each stream keeps workers of its own; the
neediest stream is served first.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from prefetchd.daemon.engine.alone import Alone
from prefetchd.daemon.engine.answers import Answers
from prefetchd.daemon.engine.batches import Piece
from prefetchd.daemon.engine.commands import Assign, Command, LendRing, Log, StartWorker, StopWorker
from prefetchd.daemon.engine.deaths import Deaths
from prefetchd.daemon.engine.stream import FailStream, Stage, StreamState, Worker, WorkerStage
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Fill, Message
from prefetchd.workers.note import Note


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
        self.finishing = False
        self._most = limit
        self._now_s = 0.0
        self._alone = Alone()
        self._deaths = Deaths(commands, fail_stream)
        self._answers = Answers(commands, self._take)
        self._retire_after_s = retire_after_s
        self._streams = streams
        self._commands = commands
        self._next_worker = 1
        self._next_task = 1

    # --- giving tasks ---

    def dispatch(self) -> None:
        """Gives every worker what it can take, the neediest stream first; a suspect before all, and alone. Nothing
        while the daemon is `finishing`."""
        if self.finishing:
            return
        if not self._alone.holds_back(self._now_s) and not self._suspect_goes_first():
            self._hand_out()
            # What was claimed just now may be one.
            self._suspect_goes_first()
        self._start_workers()

    def _suspect_goes_first(self) -> bool:
        """True when all others must wait: for a suspect that begins now, or to let it begin."""
        streams, now_s = [stream for stream in self._streams.values() if not stream.paused], self._now_s
        if self._alone.waits(streams, self.workers.values(), now_s):
            return True
        found = self._alone.begin(streams, now_s)
        if found is not None:
            worker, piece = found
            self._assign(worker, [(self._task(worker, piece), worker.stream.task_keys(worker, piece))])
        return found is not None

    def _assign(self, worker: Worker, given: list[tuple[tuple[int, ...], bytes]]) -> None:
        tasks, keys = zip(*given)
        self._commands.append(Assign(worker.number, Fill(tasks, keys if any(keys) else ())))

    @property
    def waits_for_time(self) -> bool:
        """True while a suspect keeps others from their work, or they it: not for ever, so ask dispatch() again."""
        return self._alone.is_under_way or any(stream.claims.queue.has_suspect for stream in self._streams.values())

    def _hand_out(self) -> None:
        assigned: dict[Worker, list[tuple[tuple[int, ...], bytes]]] = {}
        running = [each for each in self._streams.values() if each.stage is Stage.RUNNING and not each.paused]
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
            piece = stream.claims.next_piece(worker.number, stream.pieces)
            if piece is not None:
                assigned.setdefault(worker, []).append((self._task(worker, piece), stream.task_keys(worker, piece)))
            elif self._worker_for(stream) in (worker, None):
                # Else what it has claimed, or found room for, is another's: then that one is next.
                running.remove(stream)
        for worker, given in assigned.items():
            self._assign(worker, given)

    def _worker_for(self, stream: StreamState) -> Worker | None:
        """One that something waits for which no other can do, else an idle one if the limit allows one more busy one,
        else the one with the shortest queue."""
        most = stream.tasks_a_worker
        free = [each for each in stream.workers.values() if each.stage is WorkerStage.READY and len(each.tasks) < most]
        if not free:
            return None
        expecting = stream.claims.queue.expecting()
        best: Worker | None = None
        for worker in free:
            if worker.number in expecting:
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
        if not worker.tasks:
            worker.head_since_s = self._now_s
        worker.tasks[task] = piece
        batch = piece.batch
        slot = batch.grant.slot if batch.grant is not None else 0
        end = batch.payload_bytes if piece.digests else piece.end
        deadly = worker.stream.blame.deadly(piece)
        return (task, piece.kind, *batch.position, piece.first, end, slot, *deadly)

    def busy_beside(self, stream: StreamState) -> list[Worker]:
        """The busy workers that `stream` must share the limit with. One that has a consumer does not wait for those
        that have none: what they are at may never end."""
        lingers = stream.lingers
        return [each for each in self.workers.values() if each.busy and (lingers or not each.stream.lingers)]

    def _is_full(self, stream: StreamState) -> bool:
        """True when no more workers may be busy for `stream`."""
        return len(self.busy_beside(stream)) >= self.limit

    def _start_workers(self) -> None:
        for stream in self._streams.values():
            wanted = stream.worker_limit(self.limit)
            if stream.homes is not None:
                stream.homes.want(wanted)
            if stream.stage is not Stage.RUNNING or stream.paused:
                continue
            if len(stream.workers) >= wanted or stream.claims.need() is None:
                continue
            while len(stream.workers) < wanted:
                places = {each.place for each in stream.workers.values()}
                place = next(each for each in range(wanted) if each not in places)
                worker = Worker(self.new_number(), stream, place, head_since_s=self._now_s)
                self.workers[worker.number] = stream.workers[worker.number] = worker
                self._commands.append(StartWorker(stream.number, worker.number, place, wanted))
            stream.workers_changed()

    def new_number(self) -> int:
        """A number that no process of this daemon has had."""
        number = self._next_worker
        self._next_worker += 1
        return number

    # --- what comes back ---

    def worker_ready(self, number: int, now_s: float) -> None:
        self._now_s = now_s
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
        self._now_s = now_s
        worker = self.workers.get(number)
        if worker is None:
            return None
        self._answers.told(worker, message)
        if not worker.busy:
            worker.idle_since_s = now_s
        return worker.stream

    def _take(self, worker: Worker, task: int) -> Piece:
        piece = worker.tasks.pop(task, None)
        if piece is None:
            raise ProtocolError(f"worker {worker.number} answers task {task}, which it was not given")
        worker.head_since_s = self._now_s
        if worker.tasks:
            self._alone.began(worker)
        return piece

    def worker_died(self, number: int, how: str, now_s: float, note: Note, oom_kills: int = 0) -> None:
        """The worker's rows go to others. With `oom_kills`, so many of this daemon's processes the kernel has killed
        for memory by now, and the worker is one of them: then fewer are busy at once, before anything is blamed."""
        self._now_s = now_s
        worker = self.workers.pop(number, None)
        if worker is None:
            return
        stream = worker.stream
        stream.workers.pop(number, None)
        stream.workers_changed()
        stream.filling.release_retainer(number)
        if worker.stage is WorkerStage.STOPPING and not worker.tasks:
            return
        lowered = self.short_of_memory(oom_kills)
        head = next(iter(worker.tasks.values()), None)
        alone = head is not None and self._alone.is_alone(head)
        self._deaths.told(worker, how, note, alone=alone, innocent=lowered)
        worker.tasks.clear()

    def short_of_memory(self, oom_kills: int) -> bool:
        """A process of ours was killed for memory, if `oom_kills` is not 0: fewer workers may be busy at once from now
        on. False when that is not so, or there is but one."""
        if not oom_kills or self.limit <= 1:
            return False
        self.limit -= 1
        self._log(
            "warning",
            "workers are killed for memory",
            busy_at_once=self.limit,
            before=self.limit + 1,
            oom_kills=oom_kills,
            knob="--workers, num_workers=, or more memory",
        )
        idle = [worker for worker in self.workers.values() if self._is_retirable(worker)]
        for worker in idle[: max(0, len(self.workers) - self.limit)]:
            self._stop(worker)
        return True

    # --- going ---

    def tick(self, now_s: float) -> None:
        """Kills the workers of overdue tasks; stops workers beyond the limit that have been idle for long."""
        self._now_s = now_s
        if not self._streams:
            # Who needed so much memory is gone.
            self.limit = self._most
        for worker in self.workers.values():
            timeout_s = worker.stream.spec.timeout_s
            if timeout_s and worker.tasks and now_s - worker.head_since_s > timeout_s and not worker.stream.shards:
                self._kill_overdue(worker)
        for worker in sorted(self.workers.values(), key=lambda each: each.idle_since_s):
            if len(self.workers) <= self.limit:
                return
            if self._is_retirable(worker) and worker.idle_since_s + self._retire_after_s <= now_s:
                self._stop(worker)

    def _kill_overdue(self, worker: Worker) -> None:
        task = next(iter(worker.tasks))
        if worker.overdue_task != task:
            worker.overdue_task = task
            self._log(
                "warning",
                "task overdue",
                stream=worker.stream.name,
                worker=worker.number,
                timeout_s=worker.stream.spec.timeout_s,
            )
            self._commands.append(StopWorker(worker.number, kill=True))

    def stop_workers(self, stream: StreamState) -> None:
        """Ends the stream's workers; their answers still come or their deaths."""
        for worker in list(stream.workers.values()):
            self._stop(worker)

    def forget_stream(self, stream: StreamState) -> None:
        """The stream is being dropped or parked; its zygote takes the workers with it."""
        for number, worker in stream.workers.items():
            self.workers.pop(number, None)
            worker.tasks.clear()
        stream.workers.clear()
        stream.workers_changed()

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
        if (need := stream.claims.need()) is not None
    ]
    return min(needs)[3] if needs else None
