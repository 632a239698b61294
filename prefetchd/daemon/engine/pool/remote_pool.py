"""The remote pool has batches made on other machines: when, by how many workers, and which. Pure. The rules, whose
reasons are in decision 0120:

1. Only a stream that asks for remote workers has any, once it has a ring, a consumer, a program that can be handed on,
   and it is known that receiving its batches costs less than making them (`remote_gain`). What depends on the worker
   or on the order of all samples stays here: shards of iterable datasets, batches that are dealt in turn, files.
2. Remote workers come beside the stream's own ones, whose number they do not change. Once some are there, and nothing
   was to be made by them for `retire_after_s`, they are given back. They come again when the stream is short.
3. Here first: the stream's own workers are given what they can take before remote ones are, and what comes next. A
   remote worker gets a whole batch, so far ahead that it will be there in time (`Arrivals.lead`); TASKS_AT_ONCE at a
   time, each with a slot: what is under way elsewhere has its place here.
4. Each node's 1st, 2nd, 4th, 8th, ... batch is also made here, and from then on a row now and then
   (`RemoteWork.comparing_due`). A node whose batch differs, or that has read a file that is another one here, is not
   used any more, and what it has under way is not either. What it made before, and no trainer has yielded, is made
   again; what was handed out is named (`node_faults`).
5. What does not come in time is taken back (`hedging`), and made here. Its worker gets nothing more until it has
   answered: nobody waits for a machine that hangs.
6. An error of a sample elsewhere need not be one here: the batch is made here, where the error comes again, or the node
   is at fault. So is the batch of a worker that died. Neither counts against a sample. A node on which several tasks
   in a row fail gets none for a while.
7. While a stream waits for CPUs, no other stream of this daemon has more than its fair share of the workers that are
   there (`fair_shares`), and a stream without a trainer has none. Otherwise the workers of a stream without a trainer
   stay as long as its ring lingers: a trainer that is started again finds them.
8. A bridge that ends is opened again, after a pause that doubles; unless another one would end like it. For a new
   consumer it is tried in any case, and at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prefetchd.daemon.engine.commands import (
    AskProgram,
    CloseBridge,
    Command,
    LendRingTo,
    Log,
    OpenBridge,
    TellBridge,
)
from prefetchd.daemon.engine.pool import hedging
from prefetchd.daemon.engine.pool.answer_checks import check_remote_answer
from prefetchd.daemon.engine.pool.node_faults import exclude, tell_trainers
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.engine.stream.remote_work import BridgeStage, Comparing, RemoteTask, RemoteWork, RemoteWorker
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.tuning.fair_shares import fair_shares
from prefetchd.tuning.receiving_cost import ReceivingCost
from prefetchd.tuning.remote_gain import KNOWN_AFTER_S, filling_s_a_gb, pays
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.messages import (
    Filled,
    FillFailed,
    FillRemote,
    Message,
    Revoke,
    Spent,
    StartRemote,
    StopRemote,
)
from prefetchd.wire.remote_exception import summarize_exception

TASKS_AT_ONCE = 2
AGAIN_S = 4.0
LONGEST_PAUSE_S = 60.0
KEPT_DOWN_TO = 0.8
"""The share of what filling must cost down to which remote workers stay that are there."""
NOT_MEASURED = (
    f"not measured yet: what a batch costs is known after {KNOWN_AFTER_S:g} s of filling here. From then on the first "
    "batch from another machine takes some 10 s, and longer where a machine is to be started"
)


class RemotePool:
    """Hands batches to remote workers, and takes their answers. `new_number` gives numbers that no process of this
    daemon has had."""

    def __init__(
        self,
        streams: Mapping[int, StreamState],
        commands: list[Command],
        new_number: Callable[[], int],
        retire_after_s: float,
        *,
        has_cluster: bool,
    ) -> None:
        self._streams = streams
        self._commands = commands
        self._new_number = new_number
        self._retire_after_s = retire_after_s
        self._has_cluster = has_cluster
        self._stream_of: dict[int, StreamState] = {}
        self._next_task = 1
        self._now_s = 0.0
        self._receiving = ReceivingCost()

    # --- giving tasks ---

    def dispatch(self, now_s: float) -> None:
        """Opens bridges, asks for workers and gives them what they can take. To be called after the stream's own
        workers were given what they can take."""
        self._now_s = max(self._now_s, now_s)
        for stream in self._streams.values():
            if stream.remote is not None:
                self._dispatch(stream, stream.remote)

    def _dispatch(self, stream: StreamState, work: RemoteWork) -> None:
        if not self._may_have_any(stream, work):
            return
        if not work.bridge:
            self._open(stream, work)
        elif work.stage is BridgeStage.OPEN:
            self._lend_ring(stream, work)
            self._start_workers(stream, work)
            self._hand_out(stream, work)

    def _may_have_any(self, stream: StreamState, work: RemoteWork) -> bool:
        """True when rule 1 lets the stream have remote workers now. Notes why not where that will not change by
        itself."""
        if stream.stage is not Stage.RUNNING or stream.paused or not stream.in_use or stream.window.ring is None:
            return False
        if work.is_final or not work.wanted:
            return False
        reason = self._why_never(stream)
        if reason:
            work.why_not, work.is_final = reason, True
            self._commands.append(Log.line("warning", "no remote workers", stream=stream.name, why=reason))
            self._tell(stream, f"there are no remote workers: {reason}")
            return False
        cost = filling_s_a_gb(stream.counters.fill_us, stream.counters.filled_here_bytes)
        least = self._receiving.least_filling_s_a_gb
        if not pays(cost, KEPT_DOWN_TO * least if work.bridge else least):
            work.why_not = NOT_MEASURED
            if cost is not None:
                work.why_not = f"too cheap: a GB takes {cost:.1f} s to fill here, and would pay from {least:.1f} s on"
                self.forget(stream)
            return False
        return self._has_program(stream, work)

    def _why_never(self, stream: StreamState) -> str:
        if not self._has_cluster:
            return "this daemon knows no Ray cluster: prefetchd run --ray ADDRESS, or [daemon] ray"
        if stream.shards:
            return "shards of an iterable dataset are read where their iterators are"
        if stream.shard_affinity is not None:
            return "its batches are dealt to its workers in turn, as worker_init_fn may make a difference of them"
        if stream.spec.store == FILES:
            return "its batches are files, which its own workers write"
        if stream.unpicklable:
            return f"its program cannot be taken to another machine: {stream.unpicklable}"
        return ""

    def _has_program(self, stream: StreamState, work: RemoteWork) -> bool:
        """True when the daemon has the program; else the trainer's fork is asked for it, once."""
        host = stream.host
        may_ask = host is not None and host.is_fork and bool(host.fingerprint) and not host.asked
        if not stream.has_program and host is not None and may_ask and not work.has_asked_program:
            work.has_asked_program = host.asked = True
            self._commands.append(AskProgram(host.number, 0))
        return stream.has_program

    def _open(self, stream: StreamState, work: RemoteWork) -> None:
        if self._now_s < work.again_s:
            return
        work.bridge, work.stage, work.has_ring = self._new_number(), BridgeStage.OPENING, False
        self._stream_of[work.bridge] = stream
        self._commands.append(OpenBridge(stream.number, work.bridge))

    def _lend_ring(self, stream: StreamState, work: RemoteWork) -> None:
        if not work.has_ring:
            work.has_ring = True
            self._commands.append(LendRingTo(work.bridge, stream.number))

    def _start_workers(self, stream: StreamState, work: RemoteWork) -> None:
        if work.is_given_back and stream.is_short(self._now_s):
            work.is_given_back = False
        missing = work.allowed - len(work.workers)
        if work.is_given_back or missing <= 0 or self._now_s < work.again_s:
            return
        numbers = tuple(self._new_number() for _ in range(missing))
        for number in numbers:
            work.workers[number] = RemoteWorker(number)
            self._stream_of[number] = stream
        self._commands.append(TellBridge(work.bridge, StartRemote(numbers)))

    def _hand_out(self, stream: StreamState, work: RemoteWork) -> None:
        # Those with the fewest tasks first: each has one before any has two.
        for worker in sorted(work.workers.values(), key=lambda each: len(each.tasks)):
            if work.may_take(worker, TASKS_AT_ONCE, self._now_s):
                under_way = sum(len(each.tasks) for each in work.workers.values())
                lead = work.arrivals.lead(under_way + len(stream.workers) + 1)
                # With nothing under way, one goes as far ahead as it can, be it too near: or a first answer that took
                # long, in a ring or an epoch that is short, would have been the last.
                piece = stream.claims.claim_ahead(lead, or_last=not under_way)
                if piece is None:
                    return
                task = RemoteTask(self._next_task, piece, self._now_s, stream.counters.batches)
                self._next_task += 1
                worker.tasks[task.number] = task
                work.used_s = self._now_s
                batch = piece.batch
                assert batch.grant is not None
                epoch, step = batch.position
                row = FillTask(task.number, piece.kind, epoch, step, 0, batch.rows, batch.grant.slot).row
                keys = (batch.keys,) if batch.keys else ()
                self._commands.append(TellBridge(work.bridge, FillRemote(worker.number, (row,), keys)))

    # --- what comes back ---

    def bridge_ready(self, bridge: int) -> None:
        """Notes that the bridge has reached its cluster."""
        found = self._work_of(bridge)
        if found is not None:
            found[1].stage, found[1].why_not = BridgeStage.OPEN, ""

    def waits(self, bridge: int, reason: str) -> None:
        """Notes what remote workers wait for that have not come. Trainers are told, once, where there are none."""
        found = self._work_of(bridge)
        if found is None:
            return
        stream, work = found
        if not work.waits_for and not work.is_at_work:
            self._tell(stream, f"there are no remote workers yet: {reason}")
        work.waits_for = reason

    def used(self, bridge: int, received_bytes: int, bridge_us: int, raylet_us: int) -> None:
        """Takes a bridge's report of what receiving has cost."""
        found = self._work_of(bridge)
        if found is not None:
            self._receiving.used(received_bytes, bridge_us, raylet_us)
            found[1].receiving_s_a_gb = self._receiving.learned_s_a_gb

    def bridge_ended(self, bridge: int, reason: str, *, is_final: bool) -> None:
        """Notes that the bridge, which is dead for certain, has ended; what it had under way is made here (rule 8).
        Trainers are told, the first time in a row."""
        found = self._work_of(bridge)
        if found is None:
            return
        stream, work = found
        self._commands.append(Log.line("warning", "bridge ended", stream=stream.name, why=reason, is_final=is_final))
        for worker in list(work.workers.values()):
            self._forget_worker(stream, work, worker)
        del self._stream_of[bridge]
        work.bridge, work.waits_for = 0, ""
        work.is_final = is_final
        if self._failed(work, reason) or is_final:
            again = "" if is_final else "; it is tried again"
            self._tell(stream, f"there are no remote workers: {reason}{again}")

    def _failed(self, work: RemoteWork, reason: str) -> bool:
        """Notes why there is less than was asked for, and pauses. True the first time in a row."""
        work.failures += 1
        work.why_not = reason
        work.again_s = self._now_s + min(LONGEST_PAUSE_S, AGAIN_S * 2 ** (work.failures - 1))
        return work.failures == 1

    def _tell(self, stream: StreamState, text: str) -> None:
        """Tells the stream's trainers, each process once."""
        tell_trainers(stream, text, self._commands)

    def worker_ready(self, number: int, node: str, processor: str) -> None:
        """Notes that the remote worker is on `node` and can take tasks."""
        found = self._worker_of(number)
        if found is not None:
            _, work, worker = found
            worker.node = node
            work.node_of(worker).processor = processor
            work.forget_nodes()
            work.why_not, work.failures, work.waits_for = "", 0, ""
            work.used_s = self._now_s

    def worker_ended(self, number: int, reason: str, *, is_final: bool) -> None:
        """Notes that the remote worker is gone, and that nothing of it is written any more. Trainers are told, the
        first time in a row that this was not asked for."""
        found = self._worker_of(number)
        if found is None:
            return
        stream, work, worker = found
        was_asked = worker.is_stopping
        self._forget_worker(stream, work, worker)
        if was_asked or not reason:
            return
        self._commands.append(
            Log.line("warning", "remote worker ended", stream=stream.name, node=worker.node, why=reason)
        )
        # Those of one actor end together, and count once.
        if self._now_s >= work.again_s and self._failed(work, reason):
            self._tell(stream, f"a remote worker has ended: {reason}; its batches are made here")
        if is_final:
            # A node that is refused for what it has will be refused again: seldom enough to be borne.
            work.again_s = self._now_s + LONGEST_PAUSE_S

    def task_of(self, worker: int, number: int) -> tuple[StreamState, RemoteTask] | None:
        """Returns a task that the remote worker has, and whose it is; None when it has no such task."""
        found = self._worker_of(worker)
        task = found[2].tasks.get(number) if found is not None else None
        return (found[0], task) if found is not None and task is not None else None

    def worker_message(self, number: int, message: Message, transfer_us: int, now_s: float) -> None:
        """Takes a remote worker's answer. Raises ProtocolError; nothing has changed then."""
        self._now_s = now_s
        found = self._worker_of(number)
        if found is None:
            return
        stream, work, worker = found
        task = worker.tasks.get(getattr(message, "task", _task_of(message)))
        if task is None:
            raise ProtocolError(f"remote worker {number} answers a task that it was not given")
        check_remote_answer(stream, task.piece, message)
        del worker.tasks[task.number]
        if task.is_revoked:
            work.hedges_lost += 1
        if isinstance(message, Filled):
            self._filled(stream, work, worker, task, message, transfer_us)
            return
        if isinstance(message, FillFailed):
            self._failed_on(stream, work, worker.node, task, summarize_exception(message.error))
        elif isinstance(message, Spent):
            self._failed_on(stream, work, worker.node, task, message.reason or "a worker has died")
        # Rule 6, and what has no room in one slot, or does not fit the layout.
        self._here(stream, task)

    def _failed_on(self, stream: StreamState, work: RemoteWork, node: str, task: RemoteTask, error: str) -> None:
        """Log that a batch could not be made on the node, and let the node rest where that comes again and again."""
        epoch, step = task.piece.batch.position
        self._commands.append(
            Log.line("warning", "samples fail on another machine", stream=stream.name, node=node, error=error)
        )
        why = f"node {node} cannot make batches, such as step {step} of epoch {epoch}: {error}"
        if work.failed(node, why, self._now_s):
            pause_s = work.nodes[node].again_s - self._now_s
            self._commands.append(
                Log.line("warning", "a node is paused", stream=stream.name, node=node, why=why, pause_s=round(pause_s))
            )
            self._tell(stream, f"{why}; it gets no batch for {pause_s:.0f} s")

    def data_differs(self, number: int, task_number: int, path: str, what: str, *, is_recent: bool) -> None:
        """Take in that a remote worker has read a file that is another one here: rule 4, unless this machine has just
        changed the file."""
        found = self._worker_of(number)
        task = found[2].tasks.pop(task_number, None) if found is not None else None
        if found is None or task is None:
            return
        stream, work, worker = found
        why = f"{path} differs in {what}"
        if is_recent:
            self._failed_on(stream, work, worker.node, task, f"{why}; it was changed here just now")
        elif not work.node_of(worker).is_distrusted:
            exclude(stream, worker.node, why, task.piece.batch.position, self._commands)
        self._here(stream, task)

    def _filled(
        self,
        stream: StreamState,
        work: RemoteWork,
        worker: RemoteWorker,
        task: RemoteTask,
        message: Filled,
        transfer_us: int,
    ) -> None:
        node, piece = work.node_of(worker), task.piece
        ((_, payload_bytes, _, samples),) = message.tasks
        work.arrivals.came(self._now_s - task.given_s, stream.counters.batches - task.ready)
        if node.is_distrusted:
            self._here(stream, task)
            return
        comparing = work.comparing_due(node, self._now_s, stream.counters.fill_us)
        opened = message.opened[0] if message.opened else b""
        work.worked(node)
        node.batches += 1
        node.since_doubt += 1
        node.payload_bytes += payload_bytes
        node.transfer_us += transfer_us
        stream.counters.samples += samples
        stream.counters.samples_took(message.sample_times)
        if comparing is not Comparing.NOTHING:
            batch = node.checked = piece.batch
            node.compared_s = self._now_s
            row = node.batches % batch.rows
            is_all = comparing is Comparing.ALL or batch.whole or not stream.layout
            rows = (0, batch.rows) if is_all else (row, row + 1)
            stream.filling.made_elsewhere(piece, payload_bytes, worker.node, rows, opened)
            return
        piece.batch.node = worker.node
        node.was_made(piece.batch.position)
        if stream.filling.filled(piece, payload_bytes, opened):
            stream.counters.batch_is_ready_from_elsewhere(piece.batch.payload_bytes)

    def revoked(self, bridge: int, number: int) -> None:
        """Notes that nothing of a task that was taken back is written any more: its batch is made here."""
        found = self._work_of(bridge)
        if found is None:
            return
        stream, work = found
        for worker in work.workers.values():
            task = worker.tasks.pop(number, None)
            if task is not None:
                work.hedges_won += 1
                worker.late.add(number)
                self._here(stream, task)

    def answered_late(self, number: int, task: int) -> None:
        """Notes that a remote worker has come to the end of a task that was taken back."""
        found = self._worker_of(number)
        if found is not None:
            found[2].late.discard(task)

    def _here(self, stream: StreamState, task: RemoteTask) -> None:
        """Has the stream's own workers make the batch."""
        stream.filling.taken_back(task.piece, stream.task_sizes.pieces)

    # --- time ---

    @property
    def waits_for_time(self) -> bool:
        """True while something is to be decided after a while: so call dispatch() again."""
        return any(stream.remote is not None and not stream.remote.is_final for stream in self._streams.values())

    def tick(self, now_s: float) -> None:
        """Takes back what does not come in time, and gives back workers that had nothing to do for long."""
        self._now_s = now_s
        self._share()
        for stream in self._streams.values():
            work = stream.remote
            if work is None or not work.bridge:
                continue
            for task in hedging.due(stream, work, now_s):
                task.is_revoked = True
                self._commands.append(TellBridge(work.bridge, Revoke(task.number)))
            is_unused = work.is_at_work and not work.is_busy and now_s - work.used_s > self._retire_after_s
            if is_unused and not stream.lingers:
                work.is_given_back = True
            # A later loader of the stream may want fewer.
            most = 0 if work.is_given_back else work.allowed
            for place, worker in enumerate(list(work.workers.values())):
                worker.is_leaving = place >= most
                if worker.is_leaving and not worker.is_stopping and not worker.tasks:
                    worker.is_stopping = True
                    self._commands.append(TellBridge(work.bridge, StopRemote(worker.number)))

    def _share(self) -> None:
        """Bounds the workers of each stream by its share while a stream waits for CPUs (rule 7)."""
        with_bridge = [each for each in self._streams.values() if each.remote is not None and each.remote.bridge]
        works = [each.remote for each in with_bridge if each.remote is not None]
        is_contended = len(works) > 1 and any(work.waits_for for work in works)
        ready = sum(bool(worker.node) for work in works for worker in work.workers.values())
        wanted = [0 if stream.lingers else work.wanted for stream, work in zip(with_bridge, works)]
        for work, share in zip(works, fair_shares(ready, wanted)):
            # A stream that waits goes on asking for what it wants: other nodes may come.
            work.share = share if is_contended and not work.waits_for else None

    # --- going ---

    def forget(self, stream: StreamState) -> None:
        """Ends the stream's bridge, with all that it has: the stream is dropped, parked, or has failed."""
        work = stream.remote
        if work is None or not work.bridge:
            return
        for worker in list(work.workers.values()):
            self._forget_worker(stream, work, worker)
        self._stream_of.pop(work.bridge, None)
        self._commands.append(CloseBridge(work.bridge))
        work.bridge = 0

    def _forget_worker(self, stream: StreamState, work: RemoteWork, worker: RemoteWorker) -> None:
        del work.workers[worker.number]
        self._stream_of.pop(worker.number, None)
        if worker.tasks:
            work.node_of(worker).lost += len(worker.tasks)
        for task in worker.tasks.values():
            self._here(stream, task)
        worker.tasks.clear()

    def _work_of(self, bridge: int) -> tuple[StreamState, RemoteWork] | None:
        stream = self._stream_of.get(bridge)
        if stream is None or stream.remote is None or stream.remote.bridge != bridge:
            return None
        return stream, stream.remote

    def _worker_of(self, number: int) -> tuple[StreamState, RemoteWork, RemoteWorker] | None:
        stream = self._stream_of.get(number)
        if stream is None or stream.remote is None or number not in stream.remote.workers:
            return None
        return stream, stream.remote, stream.remote.workers[number]


def _task_of(message: Message) -> int:
    return message.tasks[0][0] if isinstance(message, Filled) and message.tasks else 0
