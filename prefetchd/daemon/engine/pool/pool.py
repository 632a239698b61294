"""The pool holds the workers of all streams: it decides which gets what task, and which start and retire. Pure.

Rules
 1. Each stream keeps workers of its own, as many as its loader has asked for: those that compute share the CPUs by the
    kernel's rules, as those of several DataLoaders do, and those that wait need none.
 2. A `limit`, where there is one, bounds the workers that are busy at once over all streams. Then fairness.py says
    whose turn it is.
 3. Whoever is next, has an idle worker and may not use it, as `limit` workers are busy, waits for one: nobody else is
    given more meanwhile. So cheap tasks wait for no more than one of another stream's slow ones; or two, where these
    are short enough to be queued (LONG_PIECE_S).
 4. A stream that is tuned has as many workers as that says; those beyond, the last ones, get no more tasks, and end.
 5. A stream that has been measured keeps its turn for RING_COMES_WITHIN_S, in which it gets its ring: its first batch
    is not to wait for another one of somebody's slow tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import MutableMapping

from prefetchd.daemon.engine.commands import (
    Assign,
    Command,
    LendRing,
    LendSamples,
    Log,
    LookAt,
    StartWorker,
    StopWorker,
)
from prefetchd.daemon.engine.fairness import FairShares
from prefetchd.daemon.engine.pool.busy_limit import BusyLimit
from prefetchd.daemon.engine.pool.helping import awaits_help, helpers
from prefetchd.daemon.engine.pool.suspect_isolation import SuspectIsolation
from prefetchd.daemon.engine.pool.worker_deaths import Deaths
from prefetchd.daemon.engine.pool.worker_results import WorkerResults
from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.shard_begins import ALONE_S, SHARED_S, ShardBegins
from prefetchd.daemon.engine.stream.stages import Stage, Stuck, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import FailStream, Host, StreamState, Worker
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.messages import Fill, Measured, Message, Spent
from prefetchd.wire.worker_status import WorkerStatus

RING_COMES_WITHIN_S = 0.25
"""The seconds in which a measured stream gets its ring (rule 5)."""
LOOKED_AT_WITHIN_S = 3.0
"""The seconds after which a worker whose task is overdue is killed, whether or not it is known where it is."""


class Pool:
    """Hands fill tasks to workers and takes their answers."""

    def __init__(
        self,
        limit: int,
        stream_workers: int,
        retire_after_s: float,
        streams: MutableMapping[int, StreamState],
        commands: list[Command],
        fail_stream: FailStream,
    ) -> None:
        self._limit = BusyLimit(limit)
        self._stream_workers = limit or stream_workers
        self._shares = FairShares()
        self.workers: dict[int, Worker] = {}
        self.finishing = False
        self._now_s = 0.0
        self._isolation = SuspectIsolation()
        self._deaths = Deaths(commands, fail_stream)
        self._fail_stream = fail_stream
        self._results = WorkerResults(commands, self._take)
        self._retire_after_s = retire_after_s
        self._streams = streams
        self._commands = commands
        self._next_worker = 1
        self._next_task = 1

    @property
    def limit(self) -> int:
        """The number of workers that may be busy at once, over all streams; 0: any number."""
        return self._limit.now

    @property
    def now_s(self) -> float:
        """The time of the latest event that it was told of."""
        return self._now_s

    # --- giving tasks ---

    def dispatch(self) -> None:
        """Gives every worker what it can take, the neediest stream first; a suspect before all, and alone. Gives
        nothing while the daemon is `finishing`."""
        if self.finishing:
            return
        self._isolation.end_if_over(self._now_s)
        # Before batches are handed out, so that all shards begin their epochs in the same order.
        self._begin_shards()
        if not self._isolation.is_under_way and not self._suspect_goes_first():
            self._hand_out()
            # A piece that was claimed just now may be a suspect.
            if not self._suspect_goes_first():
                self._have_idle_ones_help()
        self._begin_shards()
        self._start_workers()

    def _suspect_goes_first(self) -> bool:
        """True when all others must wait: for a suspect that begins now, or to let it begin."""
        streams, now_s = [stream for stream in self._streams.values() if not stream.paused], self._now_s
        if self._isolation.waits(streams, self.workers.values(), now_s):
            return True
        found = self._isolation.begin(streams, now_s)
        if found is not None:
            worker, piece = found
            self._assign(worker, self._given(worker, piece))
        return found is not None

    def _have_idle_ones_help(self) -> None:
        if self.limit:
            # Whoever is busy takes another stream's turn.
            return
        for stream in self._streams.values():
            if stream.stage is Stage.RUNNING and not stream.paused and stream.may_be_helped:
                for worker, owner, piece in list(helpers(stream, self._now_s)):
                    self._commands.append(LendSamples(worker.number, owner.number))
                    self._assign(worker, self._given(worker, piece))

    def _begin_shards(self) -> None:
        """Lets shards begin that are wanted (ShardBegins), each in its own worker."""
        for stream in self._streams.values():
            begins, affinity = stream.begins, stream.shard_affinity
            if begins is None or affinity is None or stream.stage is not Stage.RUNNING or stream.paused:
                continue
            for key, position in list(begins.wanted.items()):
                worker = self.workers.get(affinity.of(position))
                if worker is None or worker.stage is not WorkerStage.READY:
                    continue
                piece = begins.take(key)
                is_of_use = any(cursor.walks(position) for cursor in stream.window.cursors.values())
                if piece is not None and is_of_use and key not in worker.stands:
                    # A suspect may be waiting for it, so it is not held back; but then the suspect is not alone.
                    self._isolation.began(worker)
                    self._assign(worker, self._given(worker, piece))

    def _given(self, worker: Worker, piece: Piece) -> list[tuple[FillTask, bytes]]:
        stream = worker.stream
        begin = None
        if stream.begins is not None and not piece.begins:
            begin = stream.begins.before(piece, worker.stands)
        pieces = [piece] if begin is None else [begin, piece]
        return [(self._task(worker, each), self._keys(worker, each)) for each in pieces]

    def _keys(self, worker: Worker, piece: Piece) -> bytes:
        return b"".join(piece.batch.opened) if piece.checks else worker.stream.starts.task_keys(piece, worker.stands)

    def _assign(self, worker: Worker, given: list[tuple[FillTask, bytes]]) -> None:
        tasks, keys = zip(*given)
        rows = tuple(task.row for task in tasks)
        self._commands.append(Assign(worker.number, Fill(rows, keys if any(keys) else ())))

    @property
    def waits_for_time(self) -> bool:
        """True while a suspect keeps others from their work, or they keep it, or a ring is waited for: none of it lasts
        for ever, so call dispatch() again."""
        return self._isolation.is_under_way or any(
            (stream.may_be_helped and awaits_help(stream))
            or stream.claims.queue.has_suspect
            or (stream.measured_s is not None and stream.claims.roomless)
            for stream in self._streams.values()
        )

    def _hand_out(self) -> None:
        assigned: dict[Worker, list[tuple[FillTask, bytes]]] = {}
        running = [each for each in self._streams.values() if each.stage is Stage.RUNNING and not each.paused]
        contended = self.limit > 0 and len(running) > 1
        # Once for all turns: nothing becomes ready here.
        short = {each: not contended or each.is_short(self._now_s) for each in running}

        def turn(stream: StreamState) -> tuple[bool, float, int, StreamState]:
            return stream.lingers, stream.account.tag_s(short=short[stream]), stream.number, stream

        # A turn moves its own stream's tag and no other's.
        turns = [turn(each) for each in running]
        heapq.heapify(turns)
        while turns:
            stream = turns[0][-1]
            if contended and not stream.claims.has_work():
                heapq.heappop(turns)
                continue
            worker = self._worker_for(stream)
            if worker is None:
                heapq.heappop(turns)
                continue
            if not worker.busy and self._is_full(stream):
                # Rule 3.
                break
            piece = stream.claims.next_piece(worker.number, stream.small_pieces if contended else stream.pieces_at)
            if piece is not None:
                piece.charge = self._shares.begin(stream.account, self._expected_s(piece, stream), short=short[stream])
                assigned.setdefault(worker, []).extend(self._given(worker, piece))
                heapq.heapreplace(turns, turn(stream))
            elif contended and self._is_about_to_have_a_ring(stream):
                # Rule 5.
                break
            elif self._worker_for(stream) in (worker, None):
                # Else what the stream has claimed, or found room for, is for another worker: that one is next.
                heapq.heappop(turns)
        for worker, given in assigned.items():
            self._assign(worker, given)

    def _is_about_to_have_a_ring(self, stream: StreamState) -> bool:
        since_s = stream.measured_s
        return bool(stream.claims.roomless) and since_s is not None and self._now_s < since_s + RING_COMES_WITHIN_S

    @staticmethod
    def _expected_s(piece: Piece, stream: StreamState) -> float:
        """Returns how long such pieces have taken."""
        return stream.task_sizes.row_s * max(1, piece.rows)

    def _worker_for(self, stream: StreamState) -> Worker | None:
        """Returns a worker that something waits for which no other can do, else the one with the shortest queue; None
        when all have as much as they may have. Does not ask whether one more may be busy."""
        most = stream.task_sizes.tasks_a_worker
        free = [each for each in stream.workers.values() if each.stage is WorkerStage.READY and len(each.tasks) < most]
        if not free:
            return None
        expecting = stream.claims.queue.expecting()
        best: Worker | None = None
        for worker in free:
            if worker.number in expecting:
                best = worker
                break
            if not self._is_beyond_tuned(worker) and (best is None or len(worker.tasks) < len(best.tasks)):
                best = worker
        return best

    @staticmethod
    def _is_beyond_tuned(worker: Worker) -> bool:
        """True when the stream is to have fewer workers by now than there are, and this is one of the last ones."""
        return 0 < worker.stream.tuned_workers <= worker.worker_index

    def _task(self, worker: Worker, piece: Piece) -> FillTask:
        number = self._next_task
        self._next_task += 1
        if not worker.tasks:
            worker.head_since_s = self._now_s
        worker.tasks[number] = piece
        batch = piece.batch
        slot = batch.grant.slot if batch.grant is not None else 0
        if piece.owner_task is not None:
            slot = piece.owner_task
        elif piece.begins:
            slot = int(piece.anew)
        end = batch.payload_bytes if piece.digests else piece.end
        deadly = worker.stream.blame.deadly(piece)
        return FillTask(number, piece.kind, *batch.position, piece.first, end, slot, deadly)

    def busy_beside(self, stream: StreamState) -> list[Worker]:
        """Returns the busy workers that `stream` must share the limit with. A stream that has a consumer does not wait
        for those that have none: what they are at may never end."""
        lingers = stream.lingers
        return [each for each in self.workers.values() if each.busy and (lingers or not each.stream.lingers)]

    def _is_full(self, stream: StreamState) -> bool:
        """True when no more workers may be busy for `stream`."""
        return self.limit > 0 and len(self.busy_beside(stream)) >= self.limit

    def busy_limit(self, stream: StreamState) -> int:
        """Returns how many workers of the stream may be busy at once."""
        asked = stream.workers_asked(self._stream_workers)
        return min(self.limit, asked) if self.limit else asked

    def worker_limit(self, stream: StreamState) -> int:
        """Returns how many workers the stream may have. One that lost some for memory has no more than may be busy;
        else a shard's iterator keeps its worker, busy or not."""
        if stream.shards and not self._limit.is_lowered:
            return stream.shards
        return self.busy_limit(stream)

    def _start_workers(self) -> None:
        for stream in self._streams.values():
            wanted = self.worker_limit(stream)
            if stream.shard_affinity is not None:
                stream.shard_affinity.want(wanted)
            host = stream.host
            if stream.stage is not Stage.RUNNING or stream.paused or host is None or stream.failed_starts.is_pausing:
                continue
            if len(stream.workers) >= wanted or not stream.claims.has_work():
                continue
            while len(stream.workers) < wanted:
                indices = {each.worker_index for each in stream.workers.values()}
                worker_index = next(each for each in range(wanted) if each not in indices)
                worker = Worker(self.new_number(), stream, host, worker_index, head_since_s=self._now_s)
                self.workers[worker.number] = stream.workers[worker.number] = worker
                self._commands.append(StartWorker(stream.number, host.number, worker.number, worker_index, wanted))
            stream.workers_changed()

    def new_number(self) -> int:
        """Returns a number that no process of this daemon has had."""
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
        worker.stream.failed_starts.clear()
        worker.stream.task_sizes.cut_anew()
        worker.idle_since_s = now_s
        worker.stream.deaths_at_start = 0
        if worker.stream.window.ring is not None and not worker.has_ring:
            self._commands.append(LendRing(number, worker.stream.number))
            worker.has_ring = True

    def worker_message(self, number: int, message: Message, now_s: float) -> StreamState | None:
        """Takes a worker's answer. Returns the stream that it was about, or None when the worker is gone. Raises
        ProtocolError."""
        self._now_s = now_s
        worker = self.workers.get(number)
        if worker is None:
            return None
        self._results.handle(worker, message)
        if isinstance(message, Measured):
            worker.stream.measured_s = now_s
        if isinstance(message, Spent) and worker.stage is WorkerStage.READY:
            self._stop(worker)
        if not worker.busy:
            worker.idle_since_s = now_s
            self._end_if_beyond_tuned(worker)
        return worker.stream

    def tune(self, stream: StreamState, workers: int) -> None:
        """Has the stream so many workers from now on; those beyond end with their tasks. 0: as many as by default."""
        stream.tuned_workers = workers
        for worker in stream.workers.values():
            self._end_if_beyond_tuned(worker)

    def _end_if_beyond_tuned(self, worker: Worker) -> None:
        if worker.stage is WorkerStage.READY and not worker.busy and self._is_beyond_tuned(worker):
            self._stop(worker)

    def _take(self, worker: Worker, task: int) -> Piece:
        piece = worker.tasks.pop(task, None)
        if piece is None:
            raise ProtocolError(f"worker {worker.number} answers task {task}, which it was not given")
        self._shares.end(worker.stream.account, piece.charge, self._now_s - worker.head_since_s)
        worker.head_since_s = self._now_s
        if worker.tasks:
            self._isolation.began(worker)
        return piece

    def worker_died(
        self, number: int, how: ProcessExit, now_s: float, note: WorkerStatus, oom_kills: int = 0
    ) -> Worker | None:
        """Gives a dead worker's rows to others; returns the worker if it was known. With `oom_kills`, so many of this
        daemon's processes the kernel has killed for memory by now, and the worker is one of them: then fewer are busy
        at once, before anything is blamed."""
        self._now_s = now_s
        worker = self.workers.pop(number, None)
        if worker is None:
            return None
        stream = worker.stream
        stream.workers.pop(number, None)
        stream.workers_changed()
        stream.filling.forget_keeper(number)
        if worker.stage is WorkerStage.STOPPING and not worker.tasks:
            # It was told to end, and has.
            return worker
        lowered = self.short_of_memory(oom_kills)
        head = next(iter(worker.tasks.values()), None)
        alone = head is not None and self._isolation.is_alone(head)
        self._deaths.handle(worker, how, note, alone=alone, innocent=lowered)
        worker.tasks.clear()
        return worker

    def worker_not_started(self, number: int) -> Worker | None:
        """Forgets a worker for which no process can be had; returns it if it was known."""
        worker = self.workers.pop(number, None)
        if worker is not None:
            worker.stream.workers.pop(number, None)
            worker.stream.workers_changed()
        return worker

    def short_of_memory(self, oom_kills: int) -> bool:
        """Lets fewer workers be busy at once from now on: a process of ours was killed for memory, if `oom_kills` is
        not 0. False when that is not so, or there is but one."""
        # Those that are left, and the one that was killed, which worker_died() has taken out.
        before = self.limit or len(self.workers) + 1
        if not oom_kills or not self._limit.lower(before, self._now_s):
            return False
        self._commands.append(
            Log.line(
                "warning",
                "workers are killed for memory",
                busy_at_once=self.limit,
                before=before,
                oom_kills=oom_kills,
                knob="--workers, num_workers=, or more memory",
            )
        )
        # One that idles has its memory all the same.
        idle = [worker for worker in self.workers.values() if self._is_retirable(worker)]
        for worker in idle[: max(0, len(self.workers) - self.limit)]:
            self._stop(worker)
        return True

    # --- going ---

    def tick(self, now_s: float) -> None:
        """Ends the workers of overdue tasks; stops workers beyond the limit that have been idle for long."""
        self._now_s = now_s
        if not self._streams:
            self._limit.reset()
        elif self._limit.tick(now_s):
            self._commands.append(
                Log.line("info", "no worker was killed for memory for long", busy_at_once=self.limit or "any number")
            )
        for worker in list(self.workers.values()):
            timeout_s = worker.stream.spec.timeout_s
            if timeout_s and worker.tasks and now_s - worker.head_since_s > timeout_s and not worker.stream.shards:
                self._end_overdue(worker)
            elif worker.stream.begins is not None:
                self._watch_beginning(worker, worker.stream.begins)
        for worker in sorted(self.workers.values(), key=lambda each: each.idle_since_s):
            if len(self.workers) <= (self.limit or self._stream_workers):
                return
            if self._is_retirable(worker) and worker.idle_since_s + self._retire_after_s <= now_s:
                self._stop(worker)

    def _watch_beginning(self, worker: Worker, begins: ShardBegins) -> None:
        """Does what ShardBegins says of a beginning that takes long (rules 4 to 6)."""
        stream, head = worker.stream, next(iter(worker.tasks.values()), None)
        if head is None or not head.begins:
            return
        waited_s = self._now_s - worker.head_since_s
        if worker.stage is WorkerStage.STOPPING:
            if waited_s > ALONE_S:
                self._commands.append(StopWorker(worker.number, kill=True))
            return
        if head.again and waited_s > ALONE_S:
            head.again = False
            self._commands.append(Log.line("info", "shards begin anew", stream=stream.name, worker=worker.number))
            for other in stream.workers.values():
                if other is not worker and other.stage is WorkerStage.READY:
                    for piece in begins.anew(head, other.stands):
                        self._assign(other, self._given(other, piece))
        waiting = [each for each in worker.tasks.values() if each.begins and each is not head]
        if waited_s > SHARED_S and any(each.batch.position[0] == head.batch.position[0] for each in waiting):
            self._fail_stream(
                stream,
                "stream_failed",
                f"{stream.shards} shards of an iterable dataset are to begin together, each in a worker of its own; "
                f"allowed: {self.worker_limit(stream)} workers, as others were killed for memory. The first one has "
                f"not begun for {waited_s:.0f} s: it may wait for the others. Lower num_workers=, or give more memory",
            )

    def looked_at(self, number: int, stuck: Stuck) -> None:
        """Kills a worker of which it is known by now where it is `stuck`, if its task is still overdue."""
        worker = self.workers.get(number)
        if worker is None or worker.overdue_task is None or worker.stuck is not None:
            return
        if worker.overdue_task != next(iter(worker.tasks), None):
            worker.overdue_task = None
            return
        worker.stuck = stuck
        self._commands.append(StopWorker(number, kill=True))

    def _end_overdue(self, worker: Worker) -> None:
        task = next(iter(worker.tasks))
        if worker.overdue_task != task:
            worker.overdue_task, worker.overdue_since_s, worker.stuck = task, self._now_s, None
            self._commands.append(
                Log.line(
                    "warning",
                    "task overdue",
                    stream=worker.stream.name,
                    worker=worker.number,
                    timeout_s=worker.stream.spec.timeout_s,
                )
            )
            self._commands.append(LookAt(worker.stream.number, worker.number))
        elif self._now_s - worker.overdue_since_s > LOOKED_AT_WITHIN_S:
            self.looked_at(worker.number, Stuck())

    def stop_workers(self, stream: StreamState, host: Host | None = None) -> None:
        """Ends the stream's workers, or only those of `host`; their answers still come or their deaths."""
        for worker in stream.workers.values():
            if worker.stage is not WorkerStage.STOPPING and (host is None or worker.host is host):
                self._stop(worker)
        stream.workers_changed()

    def forget_stream(self, stream: StreamState) -> None:
        """Forgets the workers of a stream that is dropped or parked; its zygote takes them with it."""
        for number, worker in stream.workers.items():
            self.workers.pop(number, None)
            worker.tasks.clear()
        stream.workers.clear()
        if stream.begins is not None:
            stream.begins.wanted.clear()
        stream.workers_changed()

    def _is_retirable(self, worker: Worker) -> bool:
        return (
            worker.stage is WorkerStage.READY
            and not worker.busy
            and not (worker.stream.shard_affinity is not None and worker.stream.in_use)
        )

    def _stop(self, worker: Worker) -> None:
        worker.stage = WorkerStage.STOPPING
        worker.stream.task_sizes.cut_anew()
        self._commands.append(StopWorker(worker.number))
