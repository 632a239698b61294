"""Waits find out why a call of next() waits for long: for whom or what, and what to turn. Pure. Decision 0019
has the reasons.

They read the engine and change nothing. What a worker is at is not known here: where one is the cause, the command
names it, and whoever carries that out reads its status and its stack.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from prefetchd.daemon.engine.commands import NOBODY, ZYGOTE, Command, ReportStall
from prefetchd.daemon.engine.pool.pool import Pool
from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.stages import Stage, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.ring.cursors import Cursor
from prefetchd.ring.policy import Ring, SlotState

Key = tuple[int, int]
"""The key of a cursor: (session, cursor)."""

RAISE_WORKERS = "num_workers= (and --workers of the daemon) lets others go on beside it"
OWN_TIMEOUT = "timeout= makes an error of a batch that takes longer"
RAISE_TIMEOUT = "Raise timeout=, or 0 to wait"


@dataclasses.dataclass(frozen=True)
class Cause:
    """The reason why a batch does not come. `suspect` is the number of the worker that shows more, ZYGOTE, or
    NOBODY."""

    text: str
    knob: str = ""
    suspect: int = NOBODY
    worker: Worker | None = None


@dataclasses.dataclass(slots=True)
class _Wait:
    since_s: float
    named: int = 0


class Waits:
    """Names the cause of each wait after `after_s`, and again every `again_s`."""

    def __init__(
        self,
        after_s: float,
        again_s: float,
        streams: Mapping[int, StreamState],
        pool: Pool,
        commands: list[Command],
    ) -> None:
        self._after_s = after_s
        self._again_s = again_s
        self._streams = streams
        self._pool = pool
        self._commands = commands
        self._waits: dict[tuple[int, Key], _Wait] = {}
        self._stages: dict[int, tuple[Stage, float]] = {}

    def begins(self, stream: StreamState, key: Key, now_s: float) -> None:
        """Notes that a call of next() says that it waits."""
        self._waits[stream.number, key] = _Wait(now_s)

    def is_asked(self, stream: StreamState, key: Key, now_s: float) -> None:
        """Names the cause at once to a call of next() that is about to raise, as it has waited for as long as it
        may."""
        cursor = stream.window.cursors.get(key)
        if cursor is not None:
            since_s = self.since_s(stream, key)
            self._name(stream, key, cursor, 0.0 if since_s is None else now_s - since_s, now_s)

    def since_s(self, stream: StreamState, key: Key) -> float | None:
        """Returns when the last call of next() for the cursor said that it waits; None when that is over, or there was
        none."""
        wait = self._waits.get((stream.number, key))
        return wait.since_s if wait is not None else None

    def tick(self, now_s: float) -> None:
        """Names the waits that are due."""
        for number in [number for number in self._stages if number not in self._streams]:
            del self._stages[number]
        for stream in self._streams.values():
            if self._stages.get(stream.number, (None,))[0] is not stream.stage:
                self._stages[stream.number] = (stream.stage, now_s)
        for (number, key), wait in list(self._waits.items()):
            stream = self._streams.get(number)  # type: ignore[assignment]
            cursor = stream.window.cursors.get(key) if stream is not None else None
            if cursor is None or not cursor.blocked:
                del self._waits[number, key]
                continue
            waited_s = now_s - wait.since_s
            if 0 < stream.spec.timeout_s <= waited_s:
                # next() has raised: nobody waits any more.
                continue
            if waited_s >= self._after_s + wait.named * self._again_s:
                wait.named = int((waited_s - self._after_s) / self._again_s) + 1 if self._again_s else wait.named + 1
                self._name(stream, key, cursor, waited_s, now_s)

    def _name(self, stream: StreamState, key: Key, cursor: Cursor, waited_s: float, now_s: float) -> None:
        cause = self._cause(stream, cursor, now_s)
        head = next(iter(cause.worker.tasks.values()), None) if cause.worker is not None else None
        self._commands.append(
            ReportStall(
                *key,
                stream.number if cause.worker is None else cause.worker.stream.number,
                cursor.next,
                waited_s,
                cause.text,
                cause.knob,
                cause.suspect,
                head.batch.position if head is not None else None,
                cause.worker is not None and cause.worker.host.is_fork,
            )
        )

    # --- causes, the nearest first ---

    def _cause(self, stream: StreamState, cursor: Cursor, now_s: float) -> Cause:
        if stream.stage is not Stage.RUNNING:
            return self._not_running(stream, now_s)
        batch = stream.window.batches.get(cursor.next)
        if cursor.offered > cursor.next or (batch is not None and batch.done):
            return Cause("the batch is ready, and the trainer has yet to read what it was told")
        if batch is not None and batch.under_way:
            at_it = [worker for worker in stream.workers.values() if _has(worker, batch)]
            if at_it:
                return _at_work(at_it, stream)
        # From here on nobody works on the batch. A paused stream hands out nothing, whatever else is missing.
        if stream.paused:
            return Cause("the stream is paused", f"`prefetchd resume {stream.name}` lets it go on")
        return (
            _no_plan(stream, cursor, batch, now_s)
            or self._suspect(stream)
            or _no_room(stream, batch)
            or self._all_busy(stream)
            or self._no_worker(stream, now_s)
            or Cause(
                "the daemon has no reason to wait: that is a bug in prefetchd", "`prefetchd stop`, and run it again"
            )
        )

    def _not_running(self, stream: StreamState, now_s: float) -> Cause:
        for_s = now_s - self._stages[stream.number][1]
        # Before what the stage says: whatever that is, it lasts until a process can be had.
        if stream.failed_starts.why and stream.coming is None:
            return _no_process(stream)
        if stream.stage is Stage.AWAITING_PROGRAM:
            pids = [each.pid for each in stream.consumers.values() if each.session == stream.requests.program_from]
            who = f"the trainer with pid {pids[0]}" if pids else "a trainer"
            return Cause(f"{who} has yet to hand over the dataset, for {for_s:.0f} s")
        if stream.stage is Stage.PARKED and stream.paused:
            return Cause("the stream is drained", f"`prefetchd resume {stream.name}` lets it go on")
        if stream.stage is Stage.LOADING and stream.coming is not None and stream.coming.ready:
            return Cause(
                f"its zygote has died, and the trainer's next one looks whether the dataset is still the same, for "
                f"{for_s:.0f} s",
                "how much data that is decides how long it takes",
            )
        if stream.stage is Stage.LOADING:
            return Cause(
                f"its zygote imports modules and loads the dataset, for {for_s:.0f} s",
                "what the dataset's modules and its __setstate__ do decides how long that takes",
                ZYGOTE,
            )
        return Cause(f"the stream is {stream.stage.value}, for {for_s:.0f} s")

    def _no_worker(self, stream: StreamState, now_s: float) -> Cause | None:
        workers = [each for each in stream.workers.values() if each.stage is not WorkerStage.STOPPING]
        if any(each.stage is WorkerStage.READY for each in workers):
            return None
        if not workers and stream.failed_starts.why:
            return _no_process(stream)
        if not workers:
            return Cause("it has no worker, and its zygote has yet to start one")
        first = min(workers, key=lambda each: each.head_since_s)
        return Cause(
            f"{_workers(len(workers))} starting, for {now_s - first.head_since_s:.0f} s",
            "what it imports, or worker_init_fn if there is one, decides how long that takes",
            first.number,
            first,
        )

    def _suspect(self, stream: StreamState) -> Cause | None:
        if not stream.claims.queue.has_suspect:
            return None
        busy = [worker for worker in self._pool.workers.values() if worker.busy]
        text = "a sample on which workers have died is to be made while nothing else runs, and waits for other tasks"
        return dataclasses.replace(_at_work(busy, stream), text=text) if busy else Cause(text)

    def _all_busy(self, stream: StreamState) -> Cause | None:
        own = [worker for worker in stream.workers.values() if worker.busy]
        if own:
            return _at_work(own, stream)
        others = self._pool.busy_beside(stream)
        if not self._pool.limit or len(others) < self._pool.limit:
            return None
        by_stream = Counter(worker.stream.name for worker in others)
        names = ", ".join(f"{name!r} ({count})" for name, count in by_stream.most_common(4))
        text = f"{self._pool.limit} workers may be busy at once, and all are, with other streams: {names}"
        knob = "--workers of the daemon raises their number"
        return dataclasses.replace(_at_work(others, stream), text=text, knob=knob)


def _has(worker: Worker, batch: Batch) -> bool:
    return any(piece.batch is batch for piece in worker.tasks.values())


def _at_work(workers: Iterable[Worker], waiting: StreamState) -> Cause:
    """Returns the worker that has been at its task for longest, as the cause; `waiting` is the stream whose trainer
    waits."""
    worker = min(workers, key=lambda each: each.head_since_s)
    timeout = RAISE_TIMEOUT if waiting.spec.timeout_s else OWN_TIMEOUT
    text = _beginning(worker)
    return Cause(text, f"{timeout}; {RAISE_WORKERS}", worker.number, worker)


def _beginning(worker: Worker) -> str:
    """Returns what a worker may wait for that begins a shard; empty for another one."""
    head = next(iter(worker.tasks.values()), None)
    begins = worker.stream.begins
    if begins is None or head is None or not head.begins:
        return ""
    _, shard = begins.key(head.batch.position)
    return (
        f"shard {shard} of {worker.stream.shards} begins: it may wait at a barrier, or for a lock, that other workers "
        "have not reached"
    )


def _no_room(stream: StreamState, batch: Batch | None) -> Cause | None:
    ring = stream.window.ring
    if ring is None:
        return (
            Cause(f"its ring for batches of {stream.batch_bytes} bytes is being made") if stream.batch_bytes else None
        )
    span = batch.span if batch is not None else 1
    if ring.claimable >= span:
        return None
    return Cause(
        f"the ring is full: {_slots(ring)}; the batch takes {span}. {_holders(stream)}",
        "let go of batches, or raise buffer=",
    )


def _no_plan(stream: StreamState, cursor: Cursor, batch: Batch | None, now_s: float) -> Cause | None:
    plans, planner = stream.plans, stream.planner
    if plans is None or (batch is not None and batch.plan_verified) or plans.knows(cursor.next):
        return None
    if planner is None and stream.failed_starts.why:
        return _no_process(stream)
    if planner is None:
        return Cause("its planner, which runs the sampler, has yet to be started")
    if not planner.ready:
        return Cause(f"its planner, which runs the sampler, is starting, for {now_s - planner.since_s:.0f} s")
    return Cause("", "what the sampler does before its next batch decides how long that takes", planner.number)


def _no_process(stream: StreamState) -> Cause:
    return Cause(
        f"no process can be started for it: {stream.failed_starts.why}; it is tried again",
        "`ulimit -u` and the cgroup's pids.max bound processes, and each takes memory",
    )


def _slots(ring: Ring) -> str:
    counts = [f"{ring.count(state)} {state.value}" for state in SlotState if ring.count(state)]
    return f"of its {ring.reserved} slots {', '.join(counts)}"


def _holders(stream: StreamState) -> str:
    held = [(f"pid {each.pid}", stream.leases.held(each.session)) for each in stream.consumers.values()]
    told = ", ".join(f"{who} holds {count}" for who, count in held if count)
    former = f"workers of a dead daemon may still write to {len(stream.former_grants)}" if stream.former_grants else ""
    return "; ".join(filter(None, [told and f"Offered or handed out: {told}", former])) or "Nobody holds a batch"


def _workers(count: int) -> str:
    return "its worker is" if count == 1 else f"its {count} workers are"
