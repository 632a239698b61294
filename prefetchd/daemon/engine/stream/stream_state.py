"""Holds one stream as the engine knows it: its stage, its consumers, its workers, and how long its rows take. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

from prefetchd.daemon.engine.commands import Command, WriteSlot
from prefetchd.daemon.engine.fairness import Account
from prefetchd.daemon.engine.stream.adoption import FoundBatch
from prefetchd.daemon.engine.stream.batches import Contents, Piece
from prefetchd.daemon.engine.stream.blame import Blame
from prefetchd.daemon.engine.stream.claims import Claims
from prefetchd.daemon.engine.stream.counters import Counters
from prefetchd.daemon.engine.stream.filling import Filling
from prefetchd.daemon.engine.stream.leases import Leases
from prefetchd.daemon.engine.stream.offering import Offering
from prefetchd.daemon.engine.stream.piece_queue import PieceQueue
from prefetchd.daemon.engine.stream.plans import Plans
from prefetchd.daemon.engine.stream.shard_affinity import ShardAffinity
from prefetchd.daemon.engine.stream.shard_starts import KEPT_EPOCHS, ShardStarts
from prefetchd.daemon.engine.stream.supply import Pace, is_short
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.plan.schedule import schedule_of
from prefetchd.ring.capacity import Bounds
from prefetchd.ring.cursors import EpochLengths
from prefetchd.ring.policy import Grant
from prefetchd.ring.shard_lengths import ShardLengths
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Hello, ShardCame, ShardStart
from prefetchd.wire.records import record
from prefetchd.wire.segment_layout import CONSUMERS, SlotRecord
from prefetchd.wire.shard_states import pack
from prefetchd.wire.stream_spec import POSITION_LIMIT, Position, StreamSpec

SHORTEST_PIECE_S = 0.001
LONG_PIECE_S = 0.05
SMOOTHING = 0.1
FIRST_START_PAUSE_S = 0.25
LONGEST_START_PAUSE_S = 5.0
KEPT_AHEAD = 256
"""The number of steps beyond the ring whose plan is kept."""


class Stage(enum.Enum):
    """The stages of a stream's life."""

    AWAITING_PROGRAM = "awaiting program"
    LOADING = "loading"
    RUNNING = "running"
    PARKED = "parked"
    FAILED = "failed"


class WorkerStage(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


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


@record
class Stuck:
    """The place in the user's code where a worker is, the innermost frames first; `sleeps` when it waits for something
    there."""

    frames: tuple[str, ...] = ()
    sleeps: bool = False


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


@dataclasses.dataclass(slots=True)
class Planner:
    """The process that runs the stream's sampler. `since_s` is when its question was asked, or when it was started."""

    number: int
    since_s: float
    ready: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Consumer:
    """One trainer process on the stream: its session, and the record of the segment that it writes. One that
    `has_program` can hand it over; one that `forks` hands over a fork of itself instead. `refused` says why that fork
    was none for the stream; it is empty when it was not refused."""

    session: int
    pid: int
    record: int
    protocol: int
    has_program: bool
    forks: bool = False
    departed: bool = False
    refused: str = ""
    waited_us: int = 0
    yielded: int = 0
    pace: Pace = dataclasses.field(default_factory=Pace)


@record
class AbsentConsumer:
    """A consumer without a connection whose process lives. `position` is where it stood, None when it had yielded
    nothing. One that has `departed` only holds batches."""

    record: int
    pid: int
    position: Position | None
    departed: bool = False


class StreamState:
    """Everything the engine keeps of one stream."""

    def __init__(self, number: int, spec: StreamSpec, commands: list[Command]) -> None:
        self.number = number
        self.spec = spec
        self.stage = Stage.AWAITING_PROGRAM
        self.schedule = schedule_of(spec)
        self.shards = spec.logical_shards if spec.order == "iterable" else 0
        self._shard_lengths = ShardLengths(self.shards) if self.shards else None
        self.window = Window(
            self._shard_lengths or EpochLengths(self.schedule.steps if spec.is_arithmetic else None),
            lambda slot, record: self._write(slot, record),
            spec.low_watermark,
            spec.high_watermark,
            spec.lookback,
            self.schedule.steps if spec.equal_epochs else 0,
        )
        self.blame = Blame()
        self.host: Host | None = None
        self.coming: Host | None = None
        # The session that is about to hand over a fork of its trainer; 0: none.
        self.fork_from = 0
        self.has_program = False
        # Why it cannot be pickled; empty when it can, or nobody has tried.
        self.unpicklable = ""
        self.owner_gone_s: float | None = None
        self.plans = Plans(self.window.lengths) if self.is_planned else None
        self.planner: Planner | None = None
        self.planner_deaths = 0
        contents_at = self._contents_at if self.plans is None else self.plans.at
        self.workers: dict[int, Worker] = {}
        turns = self.shards or (spec.workers if spec.dealt else 0)
        self.homes = ShardAffinity(turns, self.workers) if turns else None
        self.starts = ShardStarts(self.shards) if self.shards else None
        self.claims = Claims(self.window, contents_at, PieceQueue(self.blame, self.homes))
        self.filling = Filling(self.window, self.claims, self.blame)
        self.leases = Leases(self.window)
        self.offering = Offering(self.window, self.leases, self.plans, lambda: self.is_awaited)
        self.consumers: dict[int, Consumer] = {}
        self.absents: dict[int, AbsentConsumer] = {}
        self.settles_until_s: float | None = None
        # The daemon's own session on a declared stream, which keeps it while nobody else is there; and whether that
        # one is told of progress (else the stream waits for trainers).
        self.keeper: int | None = None
        self.follows_progress = False
        # Why the last batch could not be written where batches go; empty when it could.
        self.store_fault = ""
        self.ring_id = 0
        self.former_grants: list[Grant] = []
        self.counters = Counters()
        # Of the samples that were left out or replaced: (epoch, step, row, attempt), and the indices that were named.
        self.bad_samples: dict[tuple[int, ...], None] = {}
        self.named_indices: set[int] = set()
        # The latest of these, with their texts: ((epoch, step, row, worker), text).
        self.bad_named: list[tuple[tuple[int, int, int, int], bytes]] = []
        self.layout = b""
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
        self.program_from = 0
        self.lingers_until_s: float | None = None
        # The process that was its last consumer (0: nobody was), by which session and when; and whether that process
        # has closed its loader and lives on.
        self.left_by = 0
        self.left_by_session = 0
        self.left_s = 0.0
        self.leaver_lives = False
        self.left_cleanly = False
        self.paused = False
        self.draining = False
        self.account = Account()
        self.host_deaths = 0
        # No process could be had for it, so often in a row; the last time why, and when it is tried again.
        self.failed_starts = 0
        self.start_failure = ""
        self.starts_again_s: float | None = None
        self.deaths_at_start = 0
        self.failure: tuple[str, str, bytes] | None = None
        self.row_s = 0.0
        self.pieces = 1
        self.tasks_a_worker = 2
        self._commands = commands

    def has_asked_for_program(self, session: int) -> bool:
        """True until `session` has handed over, once, the program that it was asked for; a trainer that was asked for a
        fork and cannot fork sends its program instead. Others may be faster meanwhile."""
        return session in (self.program_from, self.fork_from)

    def awaits_program_of(self, session: int) -> bool:
        """True while it depends on `session` whether there will be a program."""
        return self.stage is Stage.AWAITING_PROGRAM and self.program_from == session

    def has_delivered(self, session: int) -> None:
        """Notes that nothing more is asked of `session`."""
        if self.program_from == session:
            self.program_from = 0
        if self.fork_from == session:
            self.fork_from = 0

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
        return self.wanted_slots * self.slot_bytes if self.window.ring is not None else 0

    def serve_as(self, spec: StreamSpec) -> None:
        """Takes over a new consumer's wishes that change no byte of any batch."""
        self.spec = dataclasses.replace(spec, name=self.name)
        self.window.set_watermarks(spec.low_watermark, spec.high_watermark)
        self.window.lookback.wanted = spec.lookback

    def rows_found(self, found: FoundBatch) -> int:
        """Returns the samples of a dead daemon's batch; 0 when it cannot be one of this stream's."""
        if self.is_planned:
            # Its plan will say how many; until then nothing is done with the batch.
            return 1 if found.plan else 0
        return 0 if self.window.lengths.is_end(found.position) else self._contents_at(found.position).rows

    def start_failed(self, now_s: float, reason: str) -> bool:
        """Notes that no process can be had for the stream: none is started for a while, longer each time. True the
        first time in a row."""
        self.start_failure = reason
        if self.starts_again_s is None:
            self.failed_starts += 1
            pause_s = min(FIRST_START_PAUSE_S * 2 ** (self.failed_starts - 1), LONGEST_START_PAUSE_S)
            self.starts_again_s = now_s + pause_s
            return self.failed_starts == 1
        return False

    def has_started(self) -> None:
        """Notes that a process could be had."""
        self.failed_starts, self.start_failure, self.starts_again_s = 0, "", None

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

    def check_shard_end(self, piece: Piece, batches: int) -> None:
        """Raises ProtocolError when the shard of the piece's batch cannot have ended after so many batches."""
        _, step = piece.batch.position
        if self._shard_lengths is None or not 0 <= batches <= step // self.shards:
            raise ProtocolError(f"a shard of {batches} batches has not ended at step {step}")

    def shard_ended(self, piece: Piece, batches: int) -> None:
        """Notes that the piece's batch does not exist, as its shard has only `batches` of the epoch. Only after
        check_shard_end()."""
        epoch, step = piece.batch.position
        assert self._shard_lengths is not None
        self._shard_lengths.learn_shard(epoch, step % self.shards, batches)
        self.filling.shard_ended(piece)

    def learn_start(self, message: ShardStart | ShardCame) -> None:
        """Notes that an iterator of the shard can begin at that batch. Raises ProtocolError."""
        indices = (message.epoch, message.following)
        is_shard = self.starts is not None and 0 <= message.shard < self.shards
        if not is_shard or not all(0 <= each < POSITION_LIMIT for each in indices):
            raise ProtocolError(f"no shard {message.shard} has a state in a stream of {self.shards} shards")
        assert self.starts is not None
        self.starts.learn(message.epoch, message.shard, (message.following, message.state))

    def task_keys(self, worker: Worker, piece: Piece) -> bytes:
        """Returns Fill.keys for the piece: the keys of the batch, or where its shard's iterator is to begin."""
        if self.starts is None or piece.digests:
            return piece.batch.keys
        epoch, step = piece.batch.position
        number, shard = divmod(step, self.shards)
        stands = worker.stands.pop((epoch, shard), None)
        worker.stands[epoch, shard] = number + 1
        while len(worker.stands) > KEPT_EPOCHS * self.shards:
            del worker.stands[next(iter(worker.stands))]
        start = self.starts.before(epoch, shard, number) if stands != number else None
        return pack(start) if start is not None else b""

    def _contents_at(self, position: Position) -> Contents:
        # A shard's last batch may have fewer rows.
        return Contents(self.schedule.rows_per_batch if self.shards else self.schedule.rows(position[1]))

    def free_record(self) -> int | None:
        """Returns a consumer record of the segment that nobody writes, or None when all are taken."""
        taken = {consumer.record for consumer in self.consumers.values()} | self.absents.keys()
        return next((record for record in range(CONSUMERS) if record not in taken), None)

    def workers_asked(self, otherwise: int) -> int:
        """Returns how many workers the loader has asked for; of an iterable dataset one a shard."""
        return self.shards or self.spec.workers or otherwise

    def workers_changed(self) -> None:
        """Notes that workers of the stream have come or gone."""
        if self.homes is not None:
            self.homes.changed()
        self.cut_anew()

    def timed(self, rows: int, duration_s: float) -> None:
        """Notes that a task of `rows` rows took `duration_s`."""
        row_s = duration_s / rows
        self.row_s = row_s if not self.row_s else self.row_s + SMOOTHING * (row_s - self.row_s)
        self.cut_anew()

    def cut_anew(self) -> None:
        """Sets `pieces` and `tasks_a_worker`, after rows have become slower or faster, or workers have come or gone. A
        batch is cut into one piece a worker, but none shorter than SHORTEST_PIECE_S. A worker has several short tasks
        at once: the next one waits in its socket, so that it never idles between two. A long one keeps no other
        waiting."""
        ready = sum(worker.stage is WorkerStage.READY for worker in self.workers.values())
        batch_s = self.row_s * self.schedule.rows_per_batch
        if self.homes is not None:
            ready = min(ready, 1)
        self.pieces = max(1, min(ready, int(batch_s / SHORTEST_PIECE_S) if self.row_s else ready))
        piece_s = batch_s / self.pieces
        if piece_s > LONG_PIECE_S:
            self.tasks_a_worker = 1
        else:
            self.tasks_a_worker = 2 if piece_s > SHORTEST_PIECE_S / 2 else 4

    def _write(self, slot: int, record: SlotRecord) -> None:
        self._commands.append(WriteSlot(self.number, slot, record))


FailStream = Callable[[StreamState, str, str], None]
"""A function that ends the stream for good: (stream, an error's code, what its trainers are told)."""
