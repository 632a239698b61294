"""Holds one stream as the engine knows it: its stage, its consumers, its workers, and what its parts keep. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from prefetchd.daemon.engine.commands import Command, WriteSlot
from prefetchd.daemon.engine.fairness import Account
from prefetchd.daemon.engine.stream.adoption import FoundBatch
from prefetchd.daemon.engine.stream.batches import Contents, Piece
from prefetchd.daemon.engine.stream.blame import Blame
from prefetchd.daemon.engine.stream.claims import Claims
from prefetchd.daemon.engine.stream.consumers import AbsentConsumer, Consumer
from prefetchd.daemon.engine.stream.counters import Counters
from prefetchd.daemon.engine.stream.failed_starts import FailedStarts
from prefetchd.daemon.engine.stream.filling import Filling
from prefetchd.daemon.engine.stream.leases import Leases
from prefetchd.daemon.engine.stream.offering import Offering
from prefetchd.daemon.engine.stream.piece_queue import PieceQueue
from prefetchd.daemon.engine.stream.plans import Plans
from prefetchd.daemon.engine.stream.program_requests import ProgramRequests
from prefetchd.daemon.engine.stream.remote_work import RemoteWork
from prefetchd.daemon.engine.stream.shard_affinity import ShardAffinity
from prefetchd.daemon.engine.stream.shard_begins import ShardBegins
from prefetchd.daemon.engine.stream.shard_starts import ShardStarts
from prefetchd.daemon.engine.stream.stages import Planner, Stage, Stuck, WorkerStage
from prefetchd.daemon.engine.stream.store_fault import StoreFault
from prefetchd.daemon.engine.stream.supply import is_short
from prefetchd.daemon.engine.stream.task_sizes import TaskSizes
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.plan.schedule import schedule_of
from prefetchd.ring.capacity import Bounds
from prefetchd.ring.cursors import EpochLengths
from prefetchd.ring.policy import Grant
from prefetchd.ring.shard_lengths import ShardLengths
from prefetchd.wire.messages import Hello
from prefetchd.wire.segment_layout import CONSUMERS, SlotRecord
from prefetchd.wire.stream_spec import Position, StreamSpec

KEPT_AHEAD = 256
"""The number of steps beyond the ring whose plan is kept."""


@dataclasses.dataclass(slots=True, eq=False)
class Host:
    """A zygote that workers are forked from: forked itself from the trainer of `session`, or executed (0). `stream` is
    None as long as nobody knows whose it is; `asked` while it is to write its program (`asked_whole`: also a large
    one). One that is `mute` will never tell its fingerprint. It `holds_too_much` when there is no room for its program
    beside it."""

    number: int
    session: int = 0
    stream: StreamState | None = None
    ready: bool = False
    fingerprint: str = ""
    has_spare: bool = False
    asked: bool = False
    asked_whole: bool = False
    mute: bool = False
    holds_too_much: bool = False

    @property
    def is_fork(self) -> bool:
        return self.session != 0


@dataclasses.dataclass(slots=True, eq=False)
class Worker:
    """One worker process, the stream's `worker_index`-th.

    `tasks` are under way in it, oldest first. The oldest is the one that it works on, since `head_since_s`; without
    tasks, that is since when it starts. `overdue_task` has taken too long, since `overdue_since_s`: the worker is
    killed for that once it is known where it is `stuck`. `stands` has, by (epoch, shard), the batch before which its
    iterator of that shard will be when its tasks are done.
    """

    number: int
    stream: StreamState
    host: Host
    worker_index: int
    stage: WorkerStage = WorkerStage.STARTING
    tasks: dict[int, Piece] = dataclasses.field(default_factory=dict)
    has_ring: bool = False
    idle_since_s: float = 0.0
    head_since_s: float = 0.0
    overdue_task: int | None = None
    overdue_since_s: float = 0.0
    stuck: Stuck | None = None
    fill_us: int = 0
    stands: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)

    @property
    def busy(self) -> bool:
        return bool(self.tasks)


class StreamState:
    """Everything the engine keeps of one stream."""

    def __init__(self, number: int, spec: StreamSpec, commands: list[Command]) -> None:
        self.number = number
        self.spec = spec
        self.stage = Stage.AWAITING_PROGRAM
        self.schedule = schedule_of(spec)
        self.shards = spec.logical_shards if spec.order == "iterable" else 0
        shard_lengths = ShardLengths(self.shards) if self.shards else None
        self.window = Window(
            shard_lengths or EpochLengths(self.schedule.steps if spec.is_arithmetic else None),
            lambda slot, record: self._write(slot, record),
            spec.low_watermark,
            spec.high_watermark,
            spec.lookback,
            self.schedule.steps if spec.equal_epochs else 0,
        )
        self.blame = Blame()
        self.host: Host | None = None
        self.coming: Host | None = None
        self.requests = ProgramRequests()
        self.has_program = False
        # Why it cannot be pickled; empty when it can, or nobody has tried.
        self.unpicklable = ""
        self.owner_gone_s: float | None = None
        self.plans = Plans(self.window.lengths) if self.is_planned else None
        self.planner: Planner | None = None
        self.planner_deaths = 0
        contents_at = self._contents_at if self.plans is None else self.plans.at
        self.workers: dict[int, Worker] = {}
        # What the daemon has found to be right for a loader that has left it open; 0: nothing yet.
        self.tuned_workers = 0
        turns = self.shards or (spec.workers if spec.dealt else 0)
        self.shard_affinity = ShardAffinity(turns, self.workers) if turns else None
        self.task_sizes = TaskSizes(self.schedule.rows_per_batch, self.workers, by_turns=bool(turns))
        self.starts = ShardStarts(self.shards)
        rows = self.schedule.rows_per_batch
        self.begins = ShardBegins(self.shards, rows, self.window.lengths) if self.shards > 1 else None
        self.remote = RemoteWork(spec.remote_workers) if spec.remote_workers else None
        self.claims = Claims(self.window, contents_at, PieceQueue(self.blame, self.shard_affinity))
        self.filling = Filling(self.window, self.claims, self.blame, shard_lengths)
        self.leases = Leases(self.window)
        self.offering = Offering(self.window, self.leases, self.plans, lambda: self.is_awaited)
        self.consumers: dict[int, Consumer] = {}
        self.absents: dict[int, AbsentConsumer] = {}
        self.awaits_consumers_until_s: float | None = None
        # What is ready was planned by a dead daemon, and no trainer has come since that could say from which states.
        self.plan_unsaid = False
        # The daemon's own session on a declared stream, which keeps it while nobody else is there; and whether that
        # one is told of progress (else the stream waits for trainers).
        self.keeper: int | None = None
        self.follows_progress = False
        self.store_fault = StoreFault()
        self.ring_id = 0
        self.former_grants: list[Grant] = []
        self.counters = Counters()
        # Of the samples that were left out or replaced: (epoch, step, row, attempt), and the indices that were named.
        self.bad_samples: dict[tuple[int, ...], None] = {}
        self.named_indices: set[int] = set()
        # The latest of these, with their texts: ((epoch, step, row, worker), text).
        self.bad_named: list[tuple[tuple[int, int, int, int], bytes]] = []
        self.layout = b""
        self.one_by_one = False
        # Its samples cannot be handed from worker to worker.
        self.unhelpful = False
        self.slot_bytes = 0
        self.batch_bytes = 0
        # When its first batch was measured, for which there is no ring yet; None before, or when another made it.
        self.measured_s: float | None = None
        # What its ring was made with, how far it may grow, and what there was no memory for when it was to grow last
        # (0: there was).
        self.first_slots = 0
        self.bounds = Bounds(0, 0)
        self.refused_slots = 0
        self.refused_why = ""
        self.lingers_until_s: float | None = None
        # The process that was its last consumer (0: nobody was), by which session and when; and whether that process
        # has closed its loader and lives on.
        self.left_by = 0
        self.left_by_session = 0
        self.left_s = 0.0
        self.leaver_lives = False
        self.left_cleanly = False
        # Its samples change what the program holds: no other trainer may have its batches.
        self.is_private = spec.private
        self.paused = False
        self.draining = False
        self.account = Account()
        self.host_deaths = 0
        self.failed_starts = FailedStarts()
        self.deaths_at_start = 0
        self.failure: tuple[str, str, bytes] | None = None
        self._commands = commands

    def awaits_program_of(self, session: int) -> bool:
        """True while it depends on `session` whether there will be a program."""
        return self.stage is Stage.AWAITING_PROGRAM and self.requests.program_from == session

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_planned(self) -> bool:
        """True when only a sampler knows the order."""
        return self.spec.order == "sampler"

    @property
    def in_use(self) -> bool:
        """True while a process consumes the stream; one that said Goodbye and still holds tensors does not."""
        return self.is_awaited or any(not consumer.departed for consumer in self.consumers.values())

    @property
    def is_awaited(self) -> bool:
        """True while a consumer may come back."""
        return any(not absent.departed for absent in self.absents.values())

    @property
    def awaits_states(self) -> bool:
        """True while only a trainer, and none is there yet, can say from which states what is ready was planned."""
        if not self.plan_unsaid or self.keeper is not None:
            return False
        return any(not batch.plan_verified for batch in self.window.batches.values())

    @property
    def is_busy(self) -> bool:
        """True while a task of the stream is under way, here or on another machine."""
        is_busy_elsewhere = self.remote is not None and self.remote.is_busy
        return is_busy_elsewhere or any(worker.busy for worker in self.workers.values())

    def awaits(self, hello: Hello) -> bool:
        """True when this hello comes from one of the stream's absent consumers."""
        return hello.ring == self.ring_id and hello.consumer in self.absents

    @property
    def lingers(self) -> bool:
        return self.lingers_until_s is not None

    def is_short(self, now_s: float) -> bool:
        """True when a consumer is about to wait."""
        consumers = self.consumers
        return is_short(
            self.window,
            lambda session: consumers[session].pace.lately(now_s) if session in consumers else 0.0,
        )

    @property
    def wanted_slots(self) -> int:
        """The slots that the ring has, or is to have."""
        return self.window.wanted_slots

    @wanted_slots.setter
    def wanted_slots(self, slots: int) -> None:
        self.window.wanted_slots = slots

    @property
    def ring_bytes(self) -> int:
        """The bytes that the ring takes or is about to take, without its records; 0 without a ring."""
        ring = self.window.ring
        # One that gives up slots has them until their batches are used.
        return max(self.wanted_slots, ring.reserved) * self.slot_bytes if ring is not None else 0

    @property
    def is_shrinking(self) -> bool:
        """True while the ring has slots that it is not to have any more."""
        ring = self.window.ring
        return ring is not None and ring.usable < ring.reserved

    @property
    def may_be_helped(self) -> bool:
        """True where one worker may load samples for another: its batches are made whole, or nobody knows yet."""
        return self.claims.whole_only or self.window.ring is None

    def serve_as(self, spec: StreamSpec) -> None:
        """Takes over a new consumer's wishes that change no byte of any batch."""
        self.spec = dataclasses.replace(spec, name=self.name)
        self.window.set_watermarks(spec.low_watermark, spec.high_watermark)
        self.window.lookback.wanted = spec.lookback
        if self.remote is not None:
            self.remote.wanted_by(spec.remote_workers)
        elif spec.remote_workers:
            self.remote = RemoteWork(spec.remote_workers)

    def rows_found(self, found: FoundBatch) -> int:
        """Returns the samples of a dead daemon's batch; 0 when it cannot be one of this stream's."""
        if self.is_planned:
            # Its plan will say how many; until then nothing is done with the batch.
            return 1 if found.plan else 0
        return 0 if self.window.lengths.is_end(found.position) else self._contents_at(found.position).rows

    def trim_plans(self) -> None:
        """Forgets plans that no cursor comes to soon."""
        if self.plans is None:
            return
        window = self.window
        reach = [(cursor, window.limit(cursor) + KEPT_AHEAD) for cursor in window.cursors.values()]

        def is_needed(position: Position) -> bool:
            return any(
                cursor.next <= position
                and cursor.walks(position)
                and window.lengths.distance(cursor.next, position) < steps
                for cursor, steps in reach
            )

        self.plans.trim(window.cursors.values(), is_needed)

    def _contents_at(self, position: Position) -> Contents:
        # A shard's last batch may have fewer rows.
        return Contents(self.schedule.rows_per_batch if self.shards else self.schedule.rows(position[1]))

    def free_record(self) -> int | None:
        """Returns a consumer record of the segment that nobody writes, or None when all are taken."""
        taken = {consumer.record for consumer in self.consumers.values()} | self.absents.keys()
        return next((record for record in range(CONSUMERS) if record not in taken), None)

    def workers_asked(self, otherwise: int) -> int:
        """Returns how many workers the loader has asked for, or else the daemon has tuned it to; of an iterable
        dataset one a shard."""
        return self.shards or self.spec.workers or self.tuned_workers or otherwise

    def pieces_at(self, position: Position) -> int:
        """Returns into how many pieces the batch at `position` is cut."""
        ring = self.window.ring
        ring_batches = self.wanted_slots / ring.mean_span if ring is not None else 1.0
        return self.task_sizes.pieces_at(self.window.lead(position), ring_batches)

    def small_pieces(self, position: Position) -> int:
        """Returns into how many pieces any batch is cut where streams take turns at the workers: the shorter a task,
        the sooner comes the other's turn."""
        return self.task_sizes.pieces

    def lost(self, piece: Piece) -> None:
        """Hands out again what a worker has not done, and does not do any more."""
        if self.begins is not None and piece.begins:
            self.begins.lost(piece, died=False)
        else:
            self.filling.lost(piece)

    def workers_changed(self) -> None:
        """Notes that workers of the stream have come or gone."""
        if self.shard_affinity is not None:
            self.shard_affinity.changed()
        self.task_sizes.cut_anew()

    def _write(self, slot: int, record: SlotRecord) -> None:
        self._commands.append(WriteSlot(self.number, slot, record))


FailStream = Callable[[StreamState, str, str], None]
"""A function that ends the stream for good: (stream, an error's code, what its trainers are told)."""
