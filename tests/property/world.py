"""A world for the pure engine: workers, trainers and memory as plain data, every step chosen by the test.

Memory is a dict that workers write row by row. A trainer checks each batch that it is handed, row by row, and again
when it lets it go: a torn batch, a slot that is used twice, a lost, repeated or reordered step shows at once.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
import struct

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.engine import Engine, Limits
from prefetchd.daemon.engine.pool.suspect_isolation import PATIENCE_S
from prefetchd.daemon.engine.resting import RETURNS_WITHIN_S, waits_for_time
from prefetchd.daemon.engine.stream.adoption import FoundConsumer, FoundRing
from prefetchd.processes.process_exit import CLEAN, KILLED, ORPHANED, UNEXPLAINED, ProcessExit
from prefetchd.ring.offers import Offers, takers
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.messages import (
    AFTER_FIRST,
    AT_END,
    BEFORE,
    BEGIN,
    CHECK_FILES,
    COMPARE,
    DIGEST,
    FILL_ROWS,
    HELP,
    MEASURE,
    PLANNER,
    Assume,
    BatchFailed,
    Begun,
    CloseCursor,
    Compared,
    Consumed,
    Deciding,
    Digested,
    EpochStates,
    Farewell,
    FilesChecked,
    Filled,
    FillFailed,
    ForkWanted,
    GiveBack,
    Goodbye,
    Hello,
    Helped,
    Measured,
    Output,
    PlaceCursor,
    Planned,
    Published,
    Rebase,
    Recall,
    Refused,
    ShardBegun,
    ShardEnded,
    Spent,
    StreamFailed,
    Unfit,
    Waiting,
    WaitNamed,
    Welcome,
)
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_FILLING, SLOT_READY, SlotRecord
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd.wire.worker_status import DIGESTING, ITERATING, LOADING, NO_WORKER_STATUS, WorkerStatus
from tests.property.remote_world import RemoteWorld

SLOT_BYTES = 100
MOST_ANSWERS = 100
PLANNED_ROWS = (3, 3, 3, 3, 1)
"""Samples of each batch of an epoch, where a sampler decides the order."""


@dataclasses.dataclass
class SimWorker:
    number: int
    stream: int
    host: int = 0
    ready: bool = False
    tasks: list = dataclasses.field(default_factory=list)
    kept: tuple | None = None  # the batch that it retains
    kept_version: int = 0  # of the file, when it read that
    walk: tuple | None = None  # (epoch, shard, number of the next batch) of the iterator that it began
    begun: dict = dataclasses.field(default_factory=dict)  # (epoch, shard) -> version of the file, read by then


@dataclasses.dataclass
class SimPlanner:
    """Plans epochs from `bases` on, (epoch, variant): the program's own is variant 0."""

    number: int
    stream: int
    host: int = 0
    messages: list = dataclasses.field(default_factory=list)
    bases: list = dataclasses.field(default_factory=lambda: [(0, 0)])

    def variant(self, epoch: int) -> int:
        return [variant for first, variant in self.bases if first <= epoch][-1]


@dataclasses.dataclass
class SimCursor:
    number: int
    epoch: int
    step: int
    waiting: bool
    key: int = 0  # the number that it began with
    told: int | None = None  # the variant that its epoch was planned in
    stage: int = -1  # of its epoch's states, told last
    variant: int | None = None  # the variant that it began in
    version: int = 0  # of the file, when its iterator began
    may_be_void: bool = False  # its epoch is planned anew, and told anew then
    offers: dict = dataclasses.field(default_factory=dict)  # step -> (slot, generation, private) | error
    voids: dict = dataclasses.field(default_factory=dict)  # step -> the step after the last one without a batch
    ended_at: int | None = None


@dataclasses.dataclass
class Held:
    cursor: int
    slot: int
    generation: int
    span: int
    slots: list
    content: dict


class SimTrainer:
    """A client that follows the protocol: next(), hold, release, close."""

    def __init__(self, world: World, session: int) -> None:
        self.world = world
        self.session = session
        self.cursors: dict[int, SimCursor] = {}
        self.held: list[Held] = []
        self.to_release: list[int] = []
        self.marks: dict[int, int] = {}  # its own place in the segment
        self.fingerprint = ""
        self.is_identified = False
        self.program = (True, False)  # whether it can be pickled, and is large
        self.number = session
        self.record = -1
        self.ring = 0
        self.open = True
        self.connected = True
        self.departed = False
        self.hello: Hello | None = None
        self.planned = False  # its stream has a sampler
        self.sharded = False  # its stream has shards
        self.stream_name = ""
        self.failed: str | None = None
        self.refused: str | None = None
        self.deaf = False  # it is at something else than next()
        self.unanswered: list[Recall] = []
        self.shown: list[str] = []  # on its stderr
        self.told_to_wait: list = []  # before it has a stream
        self.unsaid: Assume | None = None  # on its way to the daemon

    def place(self, number: int, epoch: int, step: int, waiting: bool) -> None:
        self.world.kept.clear()
        self.cursors[number] = SimCursor(number, epoch, step, waiting, number)
        self.world.send(self, PlaceCursor(number, epoch, step, waiting))

    def activate(self, number: int) -> None:
        """The waiting cursor becomes a living one."""
        cursor = self.cursors[number]
        cursor.waiting = False
        cursor.version = self.world.version
        self.world.send(self, PlaceCursor(number, cursor.epoch, cursor.step, False))

    def wait(self, number: int) -> None:
        self.world.send(self, Waiting(number))

    def close(self, number: int) -> None:
        self.world.kept.clear()
        del self.cursors[number]
        self.world.send(self, CloseCursor(number))

    def published(self, message: Published) -> None:
        for number, epoch, first, private, *pairs in message.batches:
            cursor = self.cursors.get(number)
            if cursor is None:
                continue
            assert epoch == cursor.epoch, "a cursor is offered its own epoch only"
            assert cursor.told is not None or not self.planned, "offered before it was told of the plan"
            for i in range(0, len(pairs), 2):
                step = first + i // 2
                if step < cursor.step:
                    continue  # in flight when the cursor was moved
                assert step not in cursor.offers, "offered twice"
                cursor.offers[step] = (pairs[i], pairs[i + 1], bool(private))
        for number, epoch, first, end in message.voids:
            assert all(self.world.is_void((epoch, step)) for step in range(first, end)), "told that there is no batch"
            cursor = self.cursors.get(number)
            if cursor is not None and epoch == cursor.epoch and first >= cursor.step:
                cursor.voids[first] = end
        for number, epoch, steps in message.ends:
            cursor = self.cursors.get(number)
            if cursor is not None and epoch == cursor.epoch:
                assert not self.sharded or steps == self.world.shard_steps
                assert cursor.stage == AT_END or not self.planned, "how the epoch ends is told before its end"
                cursor.ended_at = steps

    def can_next(self, number: int) -> bool:
        cursor = self.cursors[number]
        while cursor.step in cursor.voids:
            cursor.step = cursor.voids.pop(cursor.step)
        return cursor.step in cursor.offers

    def is_at_end(self, number: int) -> bool:
        cursor = self.cursors[number]
        return not self.can_next(number) and cursor.ended_at is not None and cursor.ended_at <= cursor.step

    def load(self, epoch: int) -> None:
        """The waiting iterator's epoch is thought to begin in this variant. What the trainer is told meanwhile, it is
        told before the daemon hears of it."""
        self.unsaid = Assume(epoch, self.world.variant)

    def assume(self, cursor: SimCursor, variant: int) -> None:
        """The cursor's epoch was planned otherwise than it begins: as the client does it. Other batches are wanted."""
        self.world.send(self, Assume(cursor.epoch, variant))
        for each in [each for each in self.cursors.values() if each.epoch >= cursor.epoch]:
            former = each.number
            del self.cursors[former]
            each.number = self.world.new_cursor()
            each.offers, each.voids, each.ended_at, each.told, each.stage = {}, {}, None, None, -1
            self.cursors[each.number] = each
            self.world.send(self, PlaceCursor(each.number, each.epoch, each.step, each.waiting))
            self.world.send(self, CloseCursor(former))

    def next(self, number: int, hold: bool) -> None:
        cursor = self.cursors[number]
        if self.planned:
            wanted = self.world.wanted(cursor)
            if cursor.told != wanted:
                self.assume(cursor, wanted)
                return
            cursor.variant = wanted
        offer = cursor.offers.pop(cursor.step)
        position = (cursor.epoch, cursor.step)
        cursor.step += 1
        released = self.take_released()
        if isinstance(offer, bytes):
            self.world.send(self, Consumed(number, cursor.step, released))
            self.world.note(self, cursor.key, position, None)
            return
        slot, generation, private = offer
        content = self.world.read(self.stream, slot, generation, position, cursor.variant)
        self.world.note(self, cursor.key, position, content)
        if self.world.version and not self.world.has_crashed:
            versions = self.world.memory[self.stream][slot]["versions"].values()
            assert min(versions) >= cursor.version, "read before its epoch began, and rewritten since"
        span = self.world.memory[self.stream][slot]["span"]
        reserved = self.world.engine.streams[self.stream].window.ring.reserved
        if private or sum(held.span for held in self.held) + span > reserved // 2:
            released += (number, slot, generation)
        else:
            self.marks[slot] = generation
            assert not self.world.is_held(self.stream, slot), f"slot {slot} has two holders"
            self.held.append(Held(number, slot, generation, span, self.world.chain(self.stream, slot), content))
            # The holder writes into its batch, or only may: it must reach nobody else.
            if self.world.scribbles(generation):
                self.world.memory[self.stream][slot]["scribbled"] = True
        self.world.send(self, Consumed(number, cursor.step, released))
        if not hold and self.held:
            self.let_go(0)

    def let_go(self, index: int) -> None:
        held = self.held.pop(index)
        slot = self.world.memory[self.stream][held.slot]
        assert slot["generation"] == held.generation, "a slot was reused under its holder"
        self.to_release += (held.cursor, held.slot, held.generation)

    def take_released(self) -> tuple:
        released = tuple(self.to_release)
        self.to_release = []
        return released

    def flush(self) -> None:
        if self.to_release:
            self.world.send(self, Consumed(-1, 0, self.take_released()))

    @property
    def stream(self) -> int:
        return self.world.stream_of[self.stream_name]


class World:
    """Carries out commands at once where order cannot matter, and keeps the rest for the test to pick."""

    def __init__(
        self,
        workers: int = 2,
        slots: int = 4,
        by_rows: bool = True,
        memory_slots: int | None = None,
        *,
        lookback: bool = False,
        planned: bool = False,
        shards: list[int] | None = None,
        remote: bool = False,
    ) -> None:
        """`shards` has how many batches each shard of an iterable dataset has in an epoch. With `remote` there is a
        cluster, and batches cost so much that it is used from the first one on."""
        self.engine = Engine(Limits(workers, workers, remote=remote))
        self.remote = RemoteWorld(self)
        self.task_us = lambda stream, rows: 600_000 if remote else 1000
        self.is_by_rows = lambda stream: self.by_rows
        self.slots = slots
        self.most_slots = slots * 4
        self.by_rows = by_rows
        self.memory_slots = memory_slots
        self.lookback = lookback
        self.planned = planned
        self.shards = shards
        self.variant = 0  # in which the trainer's next iterator begins
        self.planners: dict[int, SimPlanner] = {}
        self.keys: dict[int, bytes] = {}
        self.now = 0.0
        self.trainers: dict[int, SimTrainer] = {}
        self.workers: dict[int, SimWorker] = {}
        self.pending: list[tuple] = []
        self.memory: dict[int, dict[int, dict]] = {}
        self.records: dict[int, dict[int, SlotRecord]] = {}
        self.marks: dict[int, dict[int, dict[int, int]]] = {}  # stream -> consumer record -> slot -> generation
        self.offers: dict[int, Offers] = {}
        self.former_workers: list[tuple[SimWorker, dict, dict]] = []
        self.programs_of: dict[int, str] = {}  # of those that were forked: what their fingerprint is, or will be
        self.hosts: dict[int, int] = {}  # of living zygotes: whose they are; 0 as long as nobody knows
        self.fork_of: dict[int, int] = {}  # of those that were forked: the session of their trainer
        self.spares: set[int] = set()
        self.helped = 0
        self.scarce = False  # no process can be started
        self.crowded = False  # there is no room for a large program
        self.programs: dict[int, tuple] = {}  # by session, whether its trainer's program pickles, and is large
        self.kept: dict[int, set] = {}  # stream -> positions that were ready at a crash, and are to be handed out
        self._next_ring = 1
        self.stream_of: dict[str, int] = {}
        self.yields: dict[tuple, list] = {}
        self.specs: dict[int, StreamSpec] = {}
        self.refused: list[str] = []
        self.sizes: dict[tuple, int] = {}  # position -> payload bytes of odd batches
        self.version = 0  # of the file that all samples read
        self.reads = False  # whether workers tell of it
        self.has_crashed = False  # of what a dead daemon left nobody knows which files were read
        self.failing: set = set()
        self.deviating: set = set()
        self.killing: dict[tuple, int] = {}  # position -> the row whose sample ends its worker
        self.guilty: set = set()  # other positions in whose place an error may come
        self.deaths: list[tuple] = []  # (position, row) of each worker that died at a task
        self.answers: list[tuple] = []
        self.named: list[c.ReportStall] = []
        self._next_session = 1
        self._next_cursor = 1000

    # --- trainers ---

    def join(
        self,
        spec: StreamSpec,
        name: str = "s",
        shared: bool = False,
        *,
        forks: bool = False,
        pickles: bool = True,
        large: bool = False,
        pid: int = 1,
    ) -> SimTrainer:
        """A trainer, of a process `pid`. One that `forks` hands over a fork of itself, whose fingerprint is told later,
        and whose program may be `large`, or not be pickled at all."""
        session = self._next_session
        self._next_session += 1
        self.kept.clear()
        trainer = SimTrainer(self, session)
        trainer.planned, trainer.sharded = spec.order == "sampler", spec.order == "iterable"
        self.trainers[session] = trainer
        self.programs[session] = trainer.program = (pickles, large)
        fingerprint = "" if forks else spec.fingerprint
        trainer.hello = Hello(1, "trainer", "test", pid, name, fingerprint, encode_spec(spec), shared, forks=forks)
        trainer.fingerprint = spec.fingerprint
        self.engine.hello(session, trainer.hello, self.now)
        if forks:
            self._fork(trainer)
        self._clear_offers(trainer)
        self.run()
        return trainer

    def _fork(self, trainer: SimTrainer) -> None:
        """The trainer hands over a fork of itself."""
        host = self.engine.fork_arrived(trainer.session)
        self.hosts[host] = 0
        self.fork_of[host] = trainer.session
        self.programs_of[host] = trainer.fingerprint
        self.pending += [("loaded", host), ("identified", host, trainer.fingerprint)]
        self.engine.fork_taken(trainer.session, host)

    def new_cursor(self) -> int:
        self._next_cursor += 1
        return self._next_cursor

    def send(self, trainer: SimTrainer, message) -> None:
        if not trainer.connected:
            return
        self.say(trainer)
        if isinstance(message, Assume):
            self.kept.clear()
            self._assumed(message)
        self._message(trainer, message)
        self.run()

    def _message(self, trainer: SimTrainer, message) -> None:
        self.engine.message(trainer.session, message, self.now)
        if isinstance(message, (Consumed, GiveBack, CloseCursor, Goodbye)):
            self._clear_offers(trainer, message.released[1::3] if isinstance(message, Consumed) else None)

    def _clear_offers(self, trainer: SimTrainer, slots=None) -> None:
        """What the daemon writes into its ring when leases may have ended."""
        stream = self.engine.stream_of(trainer.session)
        if stream is not None and stream.number in self.offers:
            is_leased = functools.partial(stream.leases.is_held, trainer.session)
            self.offers[stream.number].clear_released(stream.consumers[trainer.session].record, is_leased, slots)

    def say(self, trainer: SimTrainer) -> None:
        """What it has loaded arrives."""
        message, trainer.unsaid = trainer.unsaid, None
        if message is not None and trainer.connected:
            self.kept.clear()
            self._assumed(message)
            self.engine.message(trainer.session, message, self.now)
            self.run()

    def _assumed(self, message: Assume) -> None:
        for trainer in self.trainers.values():
            for cursor in trainer.cursors.values():
                cursor.may_be_void = cursor.may_be_void or cursor.epoch >= message.epoch

    def wanted(self, cursor: SimCursor) -> int:
        """The variant that the iterator's epoch begins in. That of all who share the stream, if several do."""
        if cursor.variant is not None:
            return cursor.variant
        if len(self.trainers) > 1:
            inside = [each for trainer in self.trainers.values() for each in trainer.cursors.values()]
            found = [each.variant for each in inside if each.epoch == cursor.epoch and each.variant is not None]
            return found[0] if found else self.variant
        return self.variant

    def goodbye(self, trainer: SimTrainer) -> None:
        self.kept.clear()
        trainer.departed = True
        self.send(trainer, Goodbye())
        if not trainer.connected and trainer.stream_name in self.stream_of and trainer.ring:
            self.engine.absent_departed(trainer.stream, trainer.record, self.told_marks(trainer), self.now)
            self.run()
        trainer.cursors.clear()

    def kill(self, trainer: SimTrainer) -> None:
        if self.trainers.pop(trainer.session, None) is None:
            return
        self.kept.clear()
        trainer.open = False
        if trainer.connected:
            self.engine.session_closed(trainer.session, self.told_marks(trainer), self.now)
        elif trainer.stream_name in self.stream_of and trainer.ring:
            self.engine.absent_died(trainer.stream, trainer.record, self.told_marks(trainer), self.now)
        self.run()

    def cut_off(self, trainer: SimTrainer) -> None:
        """The connection of a trainer that lives has ended."""
        trainer.connected = False
        stream = self.engine.stream_of(trainer.session)
        alive = stream is not None and stream.window.ring is not None and trainer.ring != 0
        self.engine.session_closed(trainer.session, self.told_marks(trainer), self.now, alive=alive, locked=alive)
        self.run()

    def reconnect(self, trainer: SimTrainer) -> None:
        del self.trainers[trainer.session]
        trainer.session, self._next_session = self._next_session, self._next_session + 1
        self.trainers[trainer.session] = trainer
        trainer.connected = True
        trainer.to_release = []
        if not trainer.ring:
            # Nobody counted on it: it comes anew.
            self.kept.clear()
        for cursor in trainer.cursors.values():
            cursor.offers = {}
            cursor.voids = {}
            cursor.ended_at = None
            cursor.told, cursor.stage = None, -1
        hello = dataclasses.replace(
            trainer.hello,
            stream=trainer.stream_name or trainer.hello.stream,
            cursors=tuple((each.number, each.epoch, each.step, each.waiting) for each in trainer.cursors.values()),
            held=tuple((each.cursor, each.slot, each.generation) for each in trainer.held),
            consumer=trainer.record,
            ring=trainer.ring,
            fingerprint=trainer.hello.fingerprint or (trainer.fingerprint if trainer.is_identified else ""),
        )
        self.programs[trainer.session] = trainer.program
        self.engine.hello(trainer.session, hello, self.now, self.told_marks(trainer))
        for cursor in sorted(trainer.cursors.values(), key=lambda each: each.epoch):
            if self.planned and cursor.variant is not None and trainer.session in self.trainers:
                self._assumed(Assume(cursor.epoch, cursor.variant))
                self.engine.message(trainer.session, Assume(cursor.epoch, cursor.variant), self.now)
        if hello.forks:
            self._fork(trainer)
        self._clear_offers(trainer)
        self.run()

    @staticmethod
    def told_marks(trainer: SimTrainer) -> tuple[int, ...]:
        return tuple(trainer.marks.get(slot, 0) for slot in range(max([*trainer.marks, -1]) + 1))

    # --- the daemon's end ---

    def crash(self) -> None:
        """The daemon is killed and another one adopts its rings. Trainers live on without a connection; of the former
        workers nobody knows yet whether they do."""
        self.has_crashed = True
        old, memory, records, marks, offers = self.engine, self.memory, self.records, self.marks, self.offers
        kept = {number: self._to_be_kept(number) for number in memory}
        self.engine = Engine(old.limits)
        self.former_workers += [
            (
                SimWorker(0, bridge.stream, tasks=[each.task for each in bridge.tasks if not each.is_revoked]),
                memory[bridge.stream],
                self.remote.keys,
            )
            for bridge in self.remote.bridges.values()
            if bridge.stream in memory
        ]
        self.remote.bridges, self.remote.keys = {}, {}
        self.former_workers += [
            (each, memory[each.stream], self.keys)
            for each in self.workers.values()
            if each.tasks and each.stream in memory
        ]
        self.keys = {}  # the next daemon counts tasks anew
        self.workers, self.pending, self.answers, self.planners = {}, [], [], {}
        self.hosts, self.fork_of, self.spares, self.programs_of = {}, {}, set(), {}
        self.memory, self.records, self.marks, self.offers, self.stream_of = {}, {}, {}, {}, {}
        for trainer in self.trainers.values():
            trainer.connected = False
        for number, stream in old.streams.items():
            ring = stream.window.ring
            if ring is None:
                continue
            living = {t.record: t for t in self.trainers.values() if t.ring == stream.ring_id}
            consumers = [
                FoundConsumer(
                    record,
                    1,
                    record in living,
                    min(((c.epoch, c.step) for c in living[record].cursors.values()), default=None)
                    if record in living
                    else None,
                    tuple(each.get(slot, 0) for slot in range(ring.slots)),
                    record in living and living[record].departed,
                )
                for record, each in marks[number].items()
            ]
            empty = SlotRecord(0)
            found = FoundRing(
                stream.ring_id,
                ring.slots,
                max(stream.wanted_slots, ring.reserved),
                SLOT_BYTES,
                stream.layout,
                stream.has_program,
                tuple(records[number].get(slot, empty) for slot in range(ring.reserved)),
                offers[number].words(ring.reserved),
                tuple(consumers),
            )
            adopted = self.engine.adopt(stream.spec, found, self.now)
            if adopted is None:
                assert not stream.spec.is_identified
                continue
            new = adopted.number
            self.memory[new], self.records[new], self.marks[new] = memory[number], records[number], marks[number]
            self.offers[new] = offers[number]
            self.stream_of[stream.name] = new
            self.kept[new] = kept[number]
            self.pending.append(("grown", new, stream.wanted_slots))
        self.run()

    def _to_be_kept(self, stream: int) -> set:
        """Positions of the batches that are ready and lie ahead of a living cursor: nobody needs to make them again,
        until one is handed out, or a cursor or trainer comes or goes. Beyond its share of the ring a living cursor has
        what was made before others came: that may go. What one of several may have as it is, is its own until it comes
        back. Nothing is promised to several trainers of an iterable dataset: where its shards end is found out anew, in
        slots that may be needed for it. Nor where other machines make what lies far ahead: what is missing before that
        needs room, and may find none."""
        ring = self.engine.streams[stream].window.ring
        trainers = [each for each in self.trainers.values() if self.stream_of.get(each.stream_name) == stream]
        if self.engine.limits.remote or (self.shards is not None and len(trainers) > 1):
            return set()
        cursors = [each for trainer in trainers for each in trainer.cursors.values()]
        share = self.engine.streams[stream].window.capacity // max(1, sum(not each.waiting for each in cursors))
        words = self.offers[stream].words(ring.reserved)
        owned = {slot for slot, word in enumerate(words) if len(trainers) > 1 and takers(word)[1]}
        handed = {(slot, mark) for marks in self.marks[stream].values() for slot, mark in marks.items()}
        return {
            (record.epoch, record.step)
            for slot, record in self.records[stream].items()
            if slot < ring.reserved
            and record.state == SLOT_READY
            and (slot, record.generation) not in handed
            and slot not in owned
            and any(each.epoch == record.epoch and 0 <= record.step - each.step < share for each in cursors)
        }

    def former_work(self, index: int) -> None:
        """A worker of a dead daemon, which lives still, does its task."""
        worker, memory, keys = self.former_workers[index % len(self.former_workers)]
        if not worker.tasks:
            return
        task, kind, epoch, step, first, end, slot, *_ = worker.tasks.pop(0)
        if kind not in (MEASURE, DIGEST, CHECK_FILES, HELP, BEGIN):
            assert memory[slot]["position"] == (epoch, step), "a slot was reused while a former worker writes to it"
            memory[slot]["rows"].update(dict.fromkeys(range(first, end), self.content(task, (epoch, step), keys)))

    def former_workers_die(self) -> None:
        self.former_workers = []
        for number in list(self.engine.streams):
            self.engine.former_writers_gone(number)
        self.run()

    def note(self, trainer: SimTrainer, cursor: int, position, content) -> None:
        if content is None:
            odd = (self.failing, self.killing, self.sizes, self.guilty)
            assert any(position in each for each in odd), f"an error in the place of {position}, which is not odd"
        self.yields.setdefault((trainer.number, cursor), []).append(position)
        if trainer.stream_name in self.stream_of:  # else no daemon knows it: what it was offered is an error
            self.kept.get(trainer.stream, set()).discard(position)

    def tick(self) -> None:
        self.engine.tick(self.now)
        self.run()

    # --- memory ---

    def read(self, stream: int, slot: int, generation: int, position, variant: int | None = None) -> dict:
        found = self.memory[stream][slot]
        assert found["generation"] == generation, f"slot {slot} was reused before it was read"
        assert found["position"] == position, f"slot {slot} holds {found['position']}, not {position}"
        assert not found["scribbled"], "served what another holder may have written to"
        rows = self.rows(stream, position)
        content = (position, variant) if self.planned else position
        assert found["rows"] == dict.fromkeys(range(rows), content), f"torn batch in slot {slot}: {found}, {variant}"
        return dict(found["rows"])

    def scribbles(self, generation: int) -> bool:
        """Whether who is handed a batch without a copy writes into it. Without lookback always: it is not to be seen
        again."""
        return not self.lookback or generation % 2 == 0

    def is_held(self, stream: int, slot: int) -> bool:
        """True while a trainer has the batch in `slot`, without a copy."""
        trainers = [each for each in self.trainers.values() if each.stream_name and each.held]
        return any(slot in held.slots for each in trainers if each.stream == stream for held in each.held)

    def chain(self, stream: int, slot: int) -> list:
        """All slots of the batch that begins in `slot`."""
        memory = self.memory[stream]
        slots = [slot]
        while (following := memory[slots[-1]]["next"]) >= 0:
            slots.append(following)
            assert memory[following]["generation"] == memory[slot]["generation"]
        assert len(slots) == memory[slot]["span"]
        return slots

    @property
    def shard_steps(self) -> int:
        """Steps of an epoch, to the last batch of its shards."""
        assert self.shards is not None
        ends = [(batches - 1) * len(self.shards) + shard + 1 for shard, batches in enumerate(self.shards) if batches]
        return max(ends, default=0)

    def is_void(self, position) -> bool:
        """There is no batch at that step, and others may follow."""
        if self.shards is None or position[1] >= self.shard_steps:
            return False
        number, shard = divmod(position[1], len(self.shards))
        return number >= self.shards[shard]

    def rows(self, stream: int, position) -> int:
        if self.planned:
            return PLANNED_ROWS[position[1]]
        if self.engine.streams[stream].shards:
            return self.engine.streams[stream].spec.batch_size
        return self.engine.streams[stream].schedule.rows(position[1])

    def content(self, task: int, position, keys: dict[int, bytes]):
        """What a worker makes of a task's rows, whose `keys` its daemon has sent."""
        if not self.planned:
            return position
        if task not in keys:
            return position  # another stream, whose order is arithmetic
        epoch, step, variant = struct.unpack("<3Q", keys[task])
        assert (epoch, step) == position, "the keys of another batch"
        return position, variant

    # --- commands ---

    def run(self) -> None:
        for _ in range(MOST_ANSWERS):
            while commands := self.engine.take_commands():
                for command in commands:
                    self._run(command)
            if not self.answers:
                break
            trainer, message = self.answers.pop(0)
            if trainer.open:
                self._message(trainer, message)
        else:
            raise AssertionError("offers and recalls go on for ever")
        self.check()

    def _run(self, command) -> None:
        match command:
            case c.Send(session, message):
                self._told(session, message)
            case c.Wake(session):
                for each in self.engine.publications(session):
                    self._run(each)
            case c.WriteOffers(session, published):
                stream = self.engine.stream_of(session)
                if published.batches:
                    self.offers[stream.number].record(stream.consumers[session].record, published)
            case c.StartStream(stream, host):
                assert self.engine.streams[stream].has_program, "there is nothing to load"
                self.hosts[host] = stream
                self.pending.append(("loaded" if not self.scarce else "not loaded", host))
            case c.StartSpare(stream, host, former):
                self.spares.remove(former)
                self.hosts[host] = stream
                self.fork_of[host] = self.fork_of[former]
                self.programs_of[host] = self.programs_of[former]
                self.pending.append(("loaded", host))
            case c.BindHost(host, stream):
                assert self.hosts[host] == 0
                self.hosts[host] = stream
            case c.DropHost(host):
                self.spares.discard(host)
                if self.hosts.pop(host, None) is not None:
                    self._forget_children(lambda each: each.host == host)
            case c.AskProgram(host, limit_bytes):
                self.pending.append(("program", host, limit_bytes))
            case c.Identify(stream):
                assert self.engine.streams[stream].spec.is_identified
            case c.StartWorker(stream, host) if self.hosts.get(host) != stream:
                raise AssertionError("a worker is started from a zygote that is dead, or another stream's")
            case c.StartWorker(stream, host, worker, place, _) if place == PLANNER:
                self.planners[worker] = SimPlanner(worker, stream, host)
                self.pending.append(("started" if not self.scarce else "not started", worker))
            case c.Assign(worker, message) if worker in self.planners:
                self.planners[worker].messages.append(message)
            case c.StartWorker(stream, host, worker, _, _):
                self.workers[worker] = SimWorker(worker, stream, host)
                self.pending.append(("started" if not self.scarce else "not started", worker))
            case c.LookAt(stream, worker):
                assert self.workers[worker].stream == stream
                self.pending.append(("looked at", worker))
            case c.StopWorker(worker) if worker in self.planners:
                del self.planners[worker]
            case c.StopWorker(worker, _):
                self.pending.append(("stopped", worker))
            case c.Assign(worker, message):
                self.workers[worker].tasks += map(FillTask.from_row, message.tasks)
                self.keys.update({row[0]: keys for row, keys in zip(message.tasks, message.keys)})
            case c.OpenBridge() | c.CloseBridge() | c.LendRingTo() | c.TellBridge():
                self.remote.run(command)
            case c.CreateRing(stream, _, _, _):
                self.pending.append(("ring", stream))
            case c.WriteSlot(stream, slot, record):
                self.records[stream][slot] = record
                if record.state != SLOT_READY:
                    self.offers[stream].claimed(slot)
                if record.state in (SLOT_FILLING, SLOT_CONTINUED):
                    assert not self.is_held(stream, slot), "a slot was reused under its holder"
                    self.memory[stream][slot] = {
                        "generation": record.generation,
                        "position": (record.epoch, record.step),
                        "rows": {},
                        "span": record.span,
                        "next": record.next_slot,
                        "scribbled": False,
                    }
            case c.ParkStream(stream):
                assert not any(w.tasks for w in self.workers.values() if w.stream == stream)
                # Or it was dropped at once.
                parked = self.engine.streams.get(stream)
                batches = parked.window.batches.values() if parked is not None else ()
                kept = [piece.keeper for batch in batches for piece in batch.pending]
                assert not any(kept), "a worker that keeps a batch for which there is room soon is not idle"
                self._end_processes(stream)
            case c.DropStream(stream):
                self._end_processes(stream)
                self.memory.pop(stream, None)
                self.records.pop(stream, None)
                self.marks.pop(stream, None)
                self.offers.pop(stream, None)
            case c.CloseSession(session):
                trainer = self.trainers.pop(session, None)
                if trainer is not None:
                    trainer.open = False
            case c.GrowRing(stream, slots):
                self.pending.append(("grown", stream, slots))
            case c.ShrinkRing(stream, slots):
                for slot in [each for each in self.memory[stream] if each >= slots]:
                    assert not self.is_held(stream, slot), "memory is taken from a slot under its holder"
                    # Who still reads or writes it finds nothing.
                    del self.memory[stream][slot]
                    self.records[stream].pop(slot, None)
            case c.ShareRing(session, stream):
                trainer = self.trainers.get(session)
                if trainer is not None:
                    trainer.ring = self.engine.streams[stream].ring_id
                    trainer.marks = self.marks[stream].setdefault(trainer.record, {})
            case c.ReportStall():
                self.named.append(command)
            case c.LendRing() | c.LendSamples() | c.Log():
                pass
            case _:
                raise AssertionError(command)

    def _end_processes(self, stream: int) -> None:
        self.hosts = {host: its for host, its in self.hosts.items() if its != stream}
        self._forget_children(lambda each: each.stream == stream)

    def _forget_children(self, is_meant) -> None:
        self.workers = {number: each for number, each in self.workers.items() if not is_meant(each)}
        self.planners = {number: each for number, each in self.planners.items() if not is_meant(each)}

    def _told(self, session: int, message) -> None:
        trainer = self.trainers.get(session)
        if trainer is None:
            return
        match message:
            case Welcome():
                trainer.stream_name = message.stream
                trainer.record = message.consumer
                numbers = {s.name: s.number for s in self.engine.streams.values()}
                self.stream_of[message.stream] = numbers[message.stream]
                if message.program_wanted:
                    self.engine.program_arrived(session)
            case Published():
                trainer.published(message)
            case BatchFailed(cursor, epoch, step, error):
                found = trainer.cursors.get(cursor)
                if found is not None and epoch == found.epoch and step >= found.step:
                    assert step not in found.offers
                    found.offers[step] = error
            case EpochStates(cursor, epoch, stage, variant):
                found = trainer.cursors.get(cursor)
                if found is not None:
                    assert epoch == found.epoch
                    assert stage == found.stage + 1 or (stage == BEFORE and found.may_be_void), "told twice, or late"
                    if stage == BEFORE:
                        found.may_be_void, found.ended_at = False, None
                    found.told, found.stage = variant, stage
            case StreamFailed(code, text, _):
                trainer.failed = f"{code}: {text}"
            case Refused(code, text):
                self.refused.append(f"{code}: {text}")
                trainer.refused = text
            case Recall():
                trainer.unanswered.append(message)
                if not trainer.deaf:
                    self._answer(trainer)
            case ForkWanted():
                self.pending.append(("fork", session))
            case Output(_, text):
                trainer.shown.append(text)
            case Deciding() | WaitNamed():
                trainer.told_to_wait.append(message)
            case Farewell():
                pass
            case _:
                raise AssertionError(message)

    def _answer(self, trainer: SimTrainer) -> None:
        while trainer.unanswered:
            recall = trainer.unanswered.pop(0)
            cursor = trainer.cursors.get(recall.cursor)
            if cursor is not None:
                step = max(recall.step, cursor.step)
                cursor.offers = {at: offer for at, offer in cursor.offers.items() if at < step}
                self.answers.append((trainer, GiveBack(recall.cursor, step)))

    def answer(self, trainer: SimTrainer) -> None:
        """It comes to what it was told while it was deaf."""
        self._answer(trainer)
        self.run()

    # --- what the test lets happen ---

    def deliver(self, index: int) -> None:
        """One of the pending events happens."""
        kind, subject, *more = self.pending.pop(index % len(self.pending))
        if kind == "loaded":
            if subject in self.hosts:
                self.engine.host_ready(subject)
        elif kind == "looked at":
            self.engine.worker_looked_at(subject, ("data.py:7 in wait", "data.py:3 in __getitem__"), sleeps=True)
        elif kind == "not loaded":
            if self.hosts.pop(subject, None) is not None:
                self.engine.host_not_started(subject, "Resource temporarily unavailable", self.now)
        elif kind == "not started":
            if subject in self.workers or subject in self.planners:
                self.workers.pop(subject, None)
                self.planners.pop(subject, None)
                self.engine.worker_not_started(subject, "Resource temporarily unavailable", self.now)
        elif kind == "identified":
            if subject in self.hosts:
                for trainer in self.trainers.values():
                    trainer.is_identified = trainer.is_identified or trainer.session == self.fork_of[subject]
                self.engine.host_identified(subject, more[0])
        elif kind == "program":
            self._write_program(subject, more[0])
        elif kind == "fork":
            asked = self.trainers.get(subject)
            if asked is not None and asked.connected and asked.hello.forks:
                self._fork(asked)
            elif asked is not None and asked.connected:
                self.engine.program_arrived(subject)
        elif kind == "started" and subject in self.planners:
            self.engine.worker_ready(subject, self.now)
        elif kind == "started" and subject in self.workers:
            self.workers[subject].ready = True
            self.engine.worker_ready(subject, self.now)
        elif kind == "stopped" and subject in self.workers:
            del self.workers[subject]
            self.engine.worker_died(subject, CLEAN, self.now)
        elif kind == "orphaned" and subject in self.workers:
            self._die(self.workers[subject], self._row(self.workers[subject], 0.5), UNEXPLAINED)
        elif kind == "orphaned" and subject in self.planners:
            del self.planners[subject]
            self.engine.worker_died(subject, UNEXPLAINED, self.now)
        elif kind == "ring" and subject in self.engine.streams and (short := self._short(subject, self.slots)) > 0:
            self.engine.ring_failed(subject, "no_space", "no room", short * SLOT_BYTES)
        elif kind == "ring" and subject in self.engine.streams:
            self.memory[subject], self.records[subject], self.marks[subject] = {}, {}, {}
            self.offers[subject] = Offers([0] * self.most_slots)
            self._next_ring += 1
            self.engine.ring_created(subject, self.most_slots, self.slots, SLOT_BYTES, self._next_ring)
            self.pending.append(("reserved", subject))
            self.pending.append(("reserved", subject))
        elif kind == "grown":
            stream = self.engine.streams.get(subject)
            if stream is not None and (short := self._short(subject, more[0])) > 0:
                had = stream.window.ring.reserved
                self.engine.ring_short(subject, more[0], had, "no room", short * SLOT_BYTES)
            elif stream is not None and stream.window.ring.reserved < more[0]:
                self.engine.ring_reserved(subject, more[0])
        elif kind == "reserved":
            stream = self.engine.streams.get(subject)
            if stream is not None:
                reserved = stream.window.ring.reserved
                self.engine.ring_reserved(subject, max(reserved, self.slots if reserved else self.slots // 2))
        self.run()

    def tune(self, which: int, workers: int) -> None:
        """A stream is to have so many workers from now on; none whose loader has said a number."""
        streams = list(self.engine.streams.values())
        stream = streams[which % len(streams)]
        if not stream.spec.workers and not stream.shards:
            self.engine.tune(stream.number, workers)
            self.run()

    def resize(self, which: int, slots: int) -> None:
        """A ring is to have so many slots from now on."""
        streams = list(self.engine.streams.values())
        self.engine.resize_ring(streams[which % len(streams)].number, slots)
        self.run()

    def settle_first(self, *kinds: str) -> None:
        """The first pending event of each kind happens, in this order."""
        for kind in kinds:
            self.deliver(next(at for at, each in enumerate(self.pending) if each[0] == kind))

    def _write_program(self, host: int, limit_bytes: int) -> None:
        if host not in self.hosts:
            return
        pickles, large = self.programs.get(self.fork_of[host], (True, False))
        if not pickles:
            self.engine.program_refused(host, "a lock cannot be pickled")
            self.spares.add(host)
            self.engine.spare_ready(host)
        elif large and (limit_bytes or self.crowded):
            self.engine.program_refused(host, "")
            if host in self.hosts and self.fork_of[host] in self.trainers:
                self.spares.add(host)
                self.engine.spare_ready(host)
        elif self.hosts[host]:
            self.engine.program_kept(self.hosts[host])

    def _short(self, stream: int, slots: int) -> int:
        """Slots that are missing so that `stream` may have `slots`."""
        if self.memory_slots is None:
            return 0
        rings = [(each.number, each.window.ring) for each in self.engine.streams.values()]
        others = sum(max(ring.reserved, self.slots) for number, ring in rings if ring is not None and number != stream)
        return others + slots - self.memory_slots

    def work(self, index: int, tasks: int = 1) -> None:
        """One of the busy workers does its next task; of `tasks` tasks the daemon hears all at once."""
        self._work(index)
        for _ in range(tasks - 1):
            if any(worker.tasks for worker in self.workers.values()):
                self._work(index)
        self.run()

    def _work(self, index: int) -> None:
        busy = [worker for worker in self.workers.values() if worker.tasks]
        worker = busy[index % len(busy)]
        task, kind, epoch, step, first, end, slot, deadly = worker.tasks[0]
        position = (epoch, step)
        deadly_rows = [row for row, _ in deadly]
        if self._dies_of(position, kind, first, end, deadly_rows):
            self._die(worker, self.killing[position], ProcessExit.killed(signal.SIGSEGV))
            return
        worker.tasks.pop(0)
        if kind == HELP:
            assert worker.host == self._owner_of(slot, worker), "samples of another program"
            self.helped += 1
            answer = Helped(task, 0, of_use=not self.is_by_rows(worker.stream), duration_us=10)
            self.engine.worker_message(worker.number, answer, self.now)
            return
        shards = self.engine.streams[worker.stream].shards
        has_rows = kind not in (DIGEST, CHECK_FILES)
        if kind == BEGIN:
            begins = (epoch, step % shards)
            spent = worker.host in self.fork_of and worker.walk is not None and (slot or worker.walk[:2] != begins)
            if not spent and (slot or worker.walk is None or worker.walk[:2] != begins):
                worker.walk = (*begins, 0)
            if not spent and (slot or begins not in worker.begun):
                worker.begun[begins] = self.version
            self.engine.worker_message(worker.number, Spent(task) if spent else ShardBegun(task), self.now)
            return
        if shards and has_rows and self._is_spent(worker, position, shards):
            self.engine.worker_message(worker.number, Spent(task), self.now)
            return
        if shards and has_rows and step // shards >= self.shards[step % shards]:
            self.engine.worker_message(worker.number, ShardEnded(task, self.shards[step % shards]), self.now)
            return
        if kind == DIGEST:
            self.engine.worker_message(worker.number, self._digest(worker, task, slot, position), self.now)
            return
        if kind == CHECK_FILES:
            are_same = set(self.keys[task]) <= {self.version}
            self.engine.worker_message(worker.number, FilesChecked(task, are_same), self.now)
            return
        if kind == COMPARE and position not in self.failing:
            rows = self.memory[worker.stream][slot]["rows"]
            ours = self.content(task, position, self.keys)
            is_equal = all(rows[row] == ours for row in range(first, end))
            self.remote.compared += 1
            self.engine.worker_message(worker.number, Compared(task, is_equal, 1000), self.now)
            return
        rows = self.rows(worker.stream, position)
        size = self.sizes.get(position, SLOT_BYTES)
        if position in self.failing:
            answer = FillFailed(task, b"bad sample")
        elif kind == MEASURE:
            by_rows = self.is_by_rows(worker.stream)
            worker.kept, worker.kept_version = None if by_rows else position, self.version
            answer = Measured(task, SLOT_BYTES, b"layout" if by_rows else b"")
        elif kind == FILL_ROWS and (position in self.deviating or self._leaves_out(worker, deadly_rows)):
            self._fill(worker.stream, slot, position, range(first, end), task)
            answer = Unfit.deviating(task, "dtype")
        elif (
            kind != FILL_ROWS
            and size > self.memory[worker.stream][slot]["span"] * self.engine.streams[worker.stream].slot_bytes
        ):
            worker.kept, worker.kept_version = position, self.version
            answer = Unfit.needing(task, size)
        else:
            whole = kind != FILL_ROWS
            version = worker.kept_version if worker.kept == position else self.version
            if shards:
                # What an iterator gives first was taken as it began.
                version = worker.begun.pop((epoch, step % shards), version)
            worker.kept = None
            filled = range(rows) if whole else range(first, end)
            self._fill(worker.stream, slot, position, filled, task)
            self.memory[worker.stream][slot].setdefault("versions", {}).update(dict.fromkeys(filled, version))
            self._made_by(worker)
            # Rows have the room that was measured.
            size = size if whole else SLOT_BYTES
            opened = (bytes([version]),) if self.reads else ()
            answer = Filled(((task, size, self.task_us(worker.stream, end - first), end - first),), opened=opened)
        self.engine.worker_message(worker.number, answer, self.now)

    def _owner_of(self, task: int, helper: SimWorker) -> int:
        """The host of the worker that has this task; the helper's own when it has ended."""
        owners = [each.host for each in self.workers.values() if any(row[0] == task for row in each.tasks)]
        return owners[0] if owners else helper.host

    def _made_by(self, worker: SimWorker) -> None:
        """No stream has batches of two programs, once it is known what it is of."""
        stream = self.engine.streams[worker.stream]
        if worker.host in self.programs_of:
            own = self.programs_of[worker.host]
            assert not stream.spec.is_identified or own == stream.spec.fingerprint, "made by another program"

    def _is_spent(self, worker: SimWorker, position, shards: int) -> bool:
        """A fork's worker begins one iterator, and goes forward with it."""
        if worker.host not in self.fork_of or worker.kept == position:
            return False
        number, shard = divmod(position[1], shards)
        if worker.walk is not None and (worker.walk[:2] != (position[0], shard) or worker.walk[2] > number):
            return True
        worker.walk = (position[0], shard, number + 1)
        return False

    def _digest(self, worker: SimWorker, task: int, slot: int, position) -> Digested:
        assert not self.is_held(worker.stream, slot), "the digest of what its holder may still write to"
        found = self.memory[worker.stream][slot]
        assert set(found["rows"]) == set(range(self.rows(worker.stream, position)))
        assert len(set(found["rows"].values())) == 1
        return Digested(task, 2 if found["scribbled"] else 1, 10)

    def plan(self, index: int = 0) -> None:
        """One of the planners does what it was asked."""
        asked = [each for each in self.planners.values() if each.messages]
        planner = asked[index % len(asked)]
        message = planner.messages.pop(0)
        if isinstance(message, Rebase):
            planner.bases = [base for base in planner.bases if base[0] < message.epoch]
            planner.bases.append((message.epoch, message.sampler_epoch))
            return
        epoch, first, most = message.epoch, message.first_step, len(PLANNED_ROWS)
        variant = planner.variant(epoch)
        steps = range(first, min(most, first + message.steps, first + 1 + index % 3 if index else most))
        answers: list[Begun | Planned] = []
        ends = not steps or steps[-1] == most - 1
        stages = (BEFORE, AFTER_FIRST, AT_END) if ends else (BEFORE, AFTER_FIRST)
        answers += [Begun(epoch, stage, variant) for stage in stages if stage >= message.stage]
        keys = tuple(struct.pack("<3Q", epoch, step, variant) for step in steps)
        answers.append(Planned(epoch, first, tuple(PLANNED_ROWS[step] for step in steps), keys, most if ends else -1))
        for answer in answers:
            self.engine.worker_message(planner.number, answer, self.now)
            self.run()

    def kill_planner(self) -> None:
        number = next(iter(self.planners))
        del self.planners[number]
        self.engine.worker_died(number, KILLED, self.now)
        self.run()

    def kill_worker(self, index: int, where: float = 0.5) -> None:
        numbers = sorted(number for number, worker in self.workers.items() if worker.ready)
        number = numbers[index % len(numbers)]
        worker = self.workers[number]
        self._die(worker, self._row(worker, where), KILLED)
        self.run()

    @staticmethod
    def _row(worker: SimWorker, where: float) -> int:
        return worker.tasks[0].first + int(where * worker.tasks[0].rows) if worker.tasks else 0

    def zygotes(self) -> list[int]:
        """Those that live."""
        return sorted(self.hosts)

    def kill_zygote(self, index: int = 0) -> None:
        """Its workers die with it, or soon: what they have in hand may still come."""
        host = self.zygotes()[index % len(self.hosts)]
        del self.hosts[host]
        children = [each for each in [*self.workers.values(), *self.planners.values()] if each.host == host]
        starting = {event[1] for event in self.pending if event[0] in ("started", "not started")}
        orphans = {each.number for each in children}
        gone = [("loaded", host), ("not loaded", host)]
        gone += [(kind, number) for kind in ("started", "not started", "stopped") for number in orphans]
        self.pending = [event for event in self.pending if event not in gone]
        for each in children:
            if each.number in starting:
                self.workers.pop(each.number, None)
                self.planners.pop(each.number, None)
                self.engine.worker_died(each.number, ORPHANED, self.now, NO_WORKER_STATUS)
            else:
                self.pending.append(("orphaned", each.number))
        self.engine.host_died(host, KILLED)
        self.run()

    def _dies_of(self, position, kind: int, first: int, end: int, deadly_rows: list) -> bool:
        row = self.killing.get(position)
        if row is None or row in deadly_rows or kind in (DIGEST, CHECK_FILES):
            return False
        if kind == MEASURE and self.by_rows:
            return row == 0
        return kind != FILL_ROWS or first <= row < end

    def _leaves_out(self, worker: SimWorker, deadly_rows: list) -> bool:
        return bool(deadly_rows) and self.engine.streams[worker.stream].spec.on_error == "skip"

    def _die(self, worker: SimWorker, row: int, how: ProcessExit, note: WorkerStatus | None = None, **known) -> None:
        """In the middle of its rows, if it has any."""
        del self.workers[worker.number]
        if worker.tasks:
            task, kind, epoch, step, first, _, slot, *_ = worker.tasks[0]
            if kind == FILL_ROWS:
                self._fill(worker.stream, slot, (epoch, step), range(first, row), task)
            if kind in (DIGEST, CHECK_FILES):
                note = WorkerStatus(task, DIGESTING)
            else:
                iterates = self.engine.streams[worker.stream].shards > 0
                note = note or (
                    WorkerStatus(task, ITERATING) if iterates else WorkerStatus(task, LOADING, row, 1000 + row)
                )
                self.deaths.append(((epoch, step), row))
        note = note or NO_WORKER_STATUS
        self.engine.worker_died(worker.number, how, self.now, note, **known)

    def _fill(self, stream: int, slot: int, position, rows, task: int) -> None:
        found = self.memory[stream][slot]
        assert found["position"] == position, f"a worker writes {position} into a slot of {found['position']}"
        assert position not in self.kept.get(stream, ()), f"{position} is made again, though it was ready at the crash"
        found["rows"].update(dict.fromkeys(rows, self.content(task, position, self.keys)))

    def come_to_rest(self, limit: int = 1000, *, waits: bool = True) -> None:
        """Lets everything happen that can happen without the trainers; if it `waits`, also what is made for none that
        comes back at once."""
        for _ in range(limit):
            if self.pending:
                self.deliver(0)
            elif any(planner.messages for planner in self.planners.values()):
                self.plan()
            elif any(worker.tasks for worker in self.workers.values()):
                self.work(0)
            elif self.remote.steps():
                self.remote.step(0)
            elif waits and waits_for_time(self.engine.streams.values()):
                self.now += RETURNS_WITHIN_S
                self.tick()
            else:
                return
        raise AssertionError("the world does not come to rest")

    # --- laws that hold at all times ---

    def check(self) -> None:
        pool = self.engine.pool
        if pool._isolation.holds_back(self.now) and pool._isolation.is_alone(pool._isolation._piece):
            recent = [each for each in pool.workers.values() if each.busy and self.now - each.head_since_s < PATIENCE_S]
            assert len(recent) == 1, "a suspect does not run alone"
        for host in self.engine._hosts._hosts.values():
            stream = host.stream
            if stream is not None and host not in (stream.host, stream.coming):
                assert any(each.host is host for each in stream.workers.values()), "a host that does nothing lives on"
        for stream in self.engine.streams.values():
            ring = stream.window.ring
            if ring is None:
                continue
            owners: dict[int, object] = {}
            for grant in list(ring._grants.values()):
                for slot in grant.slots:
                    assert slot not in owners, f"slot {slot} has two owners"
                    owners[slot] = grant
            free = sum(ring.state(slot).value == "free" for slot in range(ring.reserved))
            assert free == ring.reserved - len(owners)
            counted = {}
            for slot in range(ring.reserved):
                counted[ring.state(slot)] = counted.get(ring.state(slot), 0) + 1
            for state, count in counted.items():
                assert ring.count(state) == count
            behind = stream.window.lookback
            # Of single slots: when batches turn out to be longer, the limit falls, and what is kept follows later.
            most = stream.window.epoch_steps or min(behind.wanted, ring.reserved // 2)
            assert len(behind) <= most or not behind.wanted
            for batch in behind._batches.values():
                assert ring.state(batch.grant.slot).value == "ready"
                assert stream.window.batches.get(batch.position) is not batch
            # One that was dropped while its files are checked is freed when the check has ended.
            under_way = [piece.batch for worker in stream.workers.values() for piece in worker.tasks.values()]
            kept = {each.grant for each in [*stream.window.batches.values(), *behind._batches.values(), *under_way]}
            for grant in ring._grants.values():
                assert grant in kept or ring.state(grant.slot).value != "ready", "a batch that nobody can be offered"
            for batch in stream.window.batches.values():
                if batch.filled:
                    assert ring.state(batch.grant.slot).value in ("ready", "leased")
            for cursor in stream.window.cursors.values():
                for place in (cursor.next, cursor.offered):
                    assert not stream.window.lengths.is_void(place), "a cursor stands where there is no batch"
                assert cursor.next <= cursor.offered
