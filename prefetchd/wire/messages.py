"""Defines every message, as one frozen dataclass each, and the table that numbers them.

On the wire a message is one msgpack array: its number, then its fields in order (framing.py). A number is never reused;
new fields are appended with a default, so that either side may be older than the other. Descriptors travel beside a
message as SCM_RIGHTS where its docstring says so.

`(slot, generation)` pairs name one use of a slot; `cursor` is a number that the client chose, unique in its connection.
Positions are (epoch, step).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.records import record

PROTOCOL_VERSION = 2

Ints: TypeAlias = tuple[int, ...]
Rows: TypeAlias = tuple[tuple[int, ...], ...]
Blobs: TypeAlias = tuple[bytes, ...]

MESSAGE_TYPES: dict[int, type[Message]] = {}


class Message:
    """The base of all messages; `number` is its place in the table."""

    number = 0
    __slots__ = ()


def check_rows(name: str, rows: Rows, width: int) -> None:
    """Raises ProtocolError unless each row has `width` numbers."""
    if any(len(row) != width for row in rows):
        raise ProtocolError(f"{name} has rows of {sorted({len(row) for row in rows})} numbers; allowed: {width}")


_M = TypeVar("_M", bound=type[Message])


def _numbered(number: int) -> Callable[[_M], _M]:
    def register(cls: _M) -> _M:
        assert number not in MESSAGE_TYPES
        cls.number = number
        MESSAGE_TYPES[number] = cls
        return cls

    return register


# --- any peer -> daemon: the first message of every connection -------------------------------------------------


@_numbered(1)
@record
class Hello(Message):
    """Opens a connection. `role` is "trainer" or "control"; a control connection leaves the rest empty.

    A trainer asks for one stream: by `fingerprint` and `spec` (stream_spec), or by name alone to attach. While a live
    process holds the name, a stream that is not `shared` gets another one. `fresh`: batches that an earlier run left
    are dropped.

    A trainer whose connection has ended, as when its daemon died, says where it stands: `cursors` are (cursor, epoch,
    next step, waiting as below), a PROPOSED one being placed only if the stream is new; what was offered to it and not
    yielded is given back. `ring` names the ring that it has mapped (the header's created_ns), `consumer` its record
    there, and `held` are (cursor, slot, generation) of that ring whose tensors live.

    `forks`: a fork of the trainer makes the batches, and is handed over next, in Forked. Its `fingerprint` may be
    empty: then the fork sends it (Identified), and until then the daemon may answer Deciding.

    `ahead` and `why` are those of PlaceCursor, for all waiting cursors.
    """

    protocol: int
    role: str
    software: str
    pid: int
    stream: str = ""
    fingerprint: str = ""
    spec: bytes = b""
    shared: bool = False
    cursors: Rows = ()
    held: Rows = ()
    fresh: bool = False
    consumer: int = -1
    ring: int = 0
    forks: bool = False
    ahead: int = 0
    why: str = ""


LIVING, AWAITED, PROPOSED = 0, 1, 2

AHEAD, HELD, LIVE = 0, 1, 2
"""What PlaceCursor.ahead says about batches of an epoch that has not begun.

AHEAD   they are made ahead of time
HELD    none is made before the epoch begins
LIVE    none is made before the epoch begins, since the program reads live state; and none is kept for another trainer
"""


# --- daemon -> any peer ---------------------------------------------------------------------------------------


@_numbered(2)
@record
class Welcome(Message):
    """The answer to Hello. `generation` counts the daemons of this socket; `consumer` is the record to write.

    `stream` is the name that was given (another process may hold the one asked for). With `program_wanted` the daemon
    does not have the stream and waits for Program; if the trainer that was asked for it ends before it has sent it,
    another one is sent a second Welcome. `supervised`: somebody else than a client started the daemon, and may start it
    again. A trainer that asked by name alone gets the `spec` of its stream. `config` is the path of the configuration
    file that the daemon has, for whoever starts the next one; empty: none. When it gets another one, Welcome is sent
    again. `is_new`: no batch of the
    stream was there before. `workers` is how many the stream may have busy at once. `managed`: a service manager
    starts the daemon again, after a pause of its own.
    """

    protocol: int
    software: str
    pid: int
    generation: int
    stream: str = ""
    consumer: int = 0
    program_wanted: bool = False
    supervised: bool = False
    spec: bytes = b""
    config: bytes = b""
    is_new: bool = False
    workers: int = 0
    managed: bool = False


@_numbered(3)
@record
class Refused(Message):
    """The daemon will not serve this connection and closes it. `code` is one of wire.errors."""

    code: str
    message: str


# --- trainer -> daemon ----------------------------------------------------------------------------------------


@_numbered(10)
@record
class Program(Message):
    """The program that makes the stream's batches, in a program segment (program_layout) whose descriptor comes
    with this message. The daemon takes the segment over, and gives it its `name` if it has none; the client closes its
    descriptor and forgets it."""

    name: str
    program_bytes: int


@_numbered(11)
@record
class PlaceCursor(Message):
    """Creates a cursor at a position; or says that a waiting cursor's iterator begins: then the position is where it
    stands, and what it was offered stays offered. A cursor does not move: close it and place another.

    A `waiting` cursor is the next iterator's: it is filled ahead, over any number of epochs, once the living cursors
    have all they need. A cursor that is not waiting ends with its epoch.

    `ahead` is AHEAD, HELD or LIVE, and holds for the stream until the next PlaceCursor. `why` is the reason of HELD and
    LIVE, for people. With `anew` an iterator begins, and batches that were made before are dropped, except those that
    other living cursors come to.
    """

    cursor: int
    epoch: int
    step: int
    waiting: bool
    ahead: int = 0
    why: str = ""
    anew: bool = False


@_numbered(12)
@record
class CloseCursor(Message):
    """Closes a cursor: the iterator is gone; what was offered to it and not yielded is given back. Held slots stay
    leased."""

    cursor: int


@_numbered(13)
@record
class Consumed(Message):
    """Reports progress and releases, of one or several calls of next(): `step` is the cursor's next step to be yielded;
    `released` is flat (cursor, slot, generation) triples; `waited_us` is what next() waited since the last Consumed. A
    `cursor` of -1 carries releases only."""

    cursor: int
    step: int
    released: Ints = ()
    waited_us: int = 0


@_numbered(14)
@record
class GiveBack(Message):
    """Gives the cursor's offers from `step` on back, as Recall asked; they are offered again when there is room."""

    cursor: int
    step: int


@_numbered(16)
@record
class Waiting(Message):
    """Says that next() has waited for the cursor's next batch for a while: that batch comes before all that nobody
    waits for. With `why`, next() has waited for as long as it may and asks for the reason: WaitNamed answers at once,
    for the error that next() raises."""

    cursor: int
    why: bool = False


@_numbered(15)
@record
class Goodbye(Message):
    """Announces a clean close: the ring lingers for a short while, not as after a crash."""


@_numbered(17)
@record
class Assume(Message):
    """Tells how the trainer begins `epoch`, where a sampler decides the order and EpochStates said otherwise. That
    epoch and those after it are planned anew from here, unless they are planned from that already: what was offered of
    them is recalled, and EpochStates come anew. An epoch that another process is in, and has yielded of or said how it
    begins, stays as it is, and so do those after it; if it is this one, the answer is StreamFailed, or nothing while
    the sender is not in that epoch itself. Fields as in EpochStates."""

    epoch: int
    sampler_epoch: int
    states: Blobs = ()
    attributes: bytes = b""


@_numbered(18)
@record
class ShardStart(Message):
    """Tells where the iterator of an iterable dataset's shard can begin in `epoch`: with its batch number `following`,
    from `state` (shard_states). It applies to positions that are placed after this, or were in Hello."""

    epoch: int
    shard: int
    following: int
    state: bytes


@_numbered(19)
@record
class Forked(Message):
    """Hands over a zygote that was forked from the trainer, with the program in its memory, for the stream that Hello
    or ForkWanted was about. With it: its pidfd, its control socket, its output pipe. The daemon takes it over."""

    pid: int


# --- daemon -> trainer ----------------------------------------------------------------------------------------


@_numbered(20)
@record
class RingOpened(Message):
    """The stream's ring exists; its descriptor comes with this message (segment_layout)."""

    segment_bytes: int


@_numbered(21)
@record
class Published(Message):
    """Publishes batches that are ready. This message is what makes them so: nobody polls memory for readiness.

    batches      rows (cursor, epoch, first step, private, slot, generation, slot, generation, ...): consecutive
                 steps. With private = 1 others have the slot too, or hold some of the ring's: the client hands
                 out a copy and releases at once.
    ends         rows (cursor, epoch, steps): the epoch has that many steps
    voids        rows (cursor, epoch, first, end): the epoch has no batch at steps [first, end)

    The client may hold half of the ring's slots without a copy; batches beyond that it hands out as private copies.
    """

    batches: Rows = ()
    ends: Rows = ()
    voids: Rows = ()


@_numbered(22)
@record
class BatchFailed(Message):
    """Carries the error that stands in place of the batch at (epoch, step), encoded by remote_exception. The stream
    goes on."""

    cursor: int
    epoch: int
    step: int
    error: bytes


@_numbered(23)
@record
class StreamFailed(Message):
    """Says that no more batches will come: `code` and `message` (wire.errors), and the user's exception if there was
    one."""

    code: str
    message: str
    error: bytes = b""


@_numbered(24)
@record
class Output(Message):
    """Carries what a worker printed; `dropped` lines were left out to keep the rate down. Of several outputs with one
    `topic` a process shows the first, however many of its streams send one."""

    worker: int
    text: str
    dropped: int = 0
    topic: str = ""


@_numbered(26)
@record
class Recall(Message):
    """Asks for offers back, because another cursor waits for room, or because their plan is void. The client answers
    each Recall with GiveBack from `step` on, or from the cursor's next step if that is later, and drops the offers."""

    cursor: int
    step: int


@_numbered(27)
@record
class WaitNamed(Message):
    """Says why the call of next() that waits for the cursor's batch at (epoch, step) has waited for so long, in lines
    for people: who it waits for, for how long, and what to turn. Before Welcome: why that takes so long."""

    cursor: int
    epoch: int
    step: int
    text: str


@_numbered(28)
@record
class EpochStates(Message):
    """Gives the states of the trainer's generators where a sampler decides the order: before `epoch` as it was planned
    (`stage` 0), after the sampler has given its first batch (1), at its end (2), in the order of the program's
    `generators`. `sampler_epoch` is what the sampler's set_epoch was called with, or -1. Comes before the epoch's
    batches, and before those of another plan of it: the client compares stage 0 each time that it changes. `attributes`
    are what the sampler has in plain attributes of its own then (wire.sampler_epochs)."""

    cursor: int
    epoch: int
    stage: int
    sampler_epoch: int
    states: Blobs = ()
    attributes: bytes = b""


STAGES = BEFORE, AFTER_FIRST, AT_END = range(3)


@_numbered(29)
@record
class BadSamplesNamed(Message):
    """Names samples that were left out or replaced, each index once: rows (epoch, step, row, worker), and for each a
    line of text for people, in UTF-8. With `before` they are from before this trainer came, and former trainers were
    sent them."""

    samples: Rows
    texts: Blobs
    before: bool = False


@_numbered(4)
@record
class Deciding(Message):
    """Says that the decision is still open: there are batches that may be what is asked for, and Welcome or Refused
    follows once the fingerprint is known. A daemon that `takes_fingerprint` takes it from the trainer, too
    (Identified): then these batches are given to it, if they are of that fingerprint. If they are not, Deciding comes
    once more, and the fork is waited for."""

    takes_fingerprint: bool = False


@_numbered(38)
@record
class ForkWanted(Message):
    """Asks for another Forked: what made the stream's batches is gone, and the daemon has no program."""


@_numbered(25)
@record
class Farewell(Message):
    """Says that the daemon is going down in order. Its rings go with it, unless it was asked to keep them (Stop)."""

    reason: str


# --- control --------------------------------------------------------------------------------------------------


@_numbered(30)
@record
class Stop(Message):
    """Asks the daemon to end; it answers Farewell once it has begun. Workers may finish what they are at, for a short
    while; with `now` they are killed. With `keep` it leaves its rings for the next daemon on its socket, which adopts
    them; a daemon that does not know `keep` drops them."""

    now: bool = False
    keep: bool = False


@_numbered(31)
@record
class Pause(Message):
    """Stops filling the stream, or all streams that there are when `stream` is empty, until Resume. With `drain`, their
    processes end once they have nothing to do. Answered by Done."""

    stream: str = ""
    drain: bool = False


@_numbered(32)
@record
class Resume(Message):
    """Takes Pause back. Answered by Done."""

    stream: str = ""


@_numbered(33)
@record
class Evict(Message):
    """Drops the stream: ring, program and processes. Refused while it has a consumer, unless `force` is set. Answered
    by Done."""

    stream: str
    force: bool = False


LOG_LEVELS = ("debug", "info", "warning", "error")


@_numbered(34)
@record
class SetLogLevel(Message):
    """Sets what the daemon logs from now on, one of LOG_LEVELS. Answered by Done."""

    level: str


@_numbered(35)
@record
class Done(Message):
    """Says that the daemon has done what was asked, to the streams of these names (UTF-8)."""

    streams: Blobs = ()


@_numbered(39)
@record
class Reload(Message):
    """Asks the daemon to take the configuration file `config` on, a whole path; empty: to read its own again. A daemon
    that has another file refuses, unless `replace` is set. Answered by Reloaded once the streams are begun, or by
    Refused; nothing has changed then."""

    config: bytes = b""
    replace: bool = False


@_numbered(59)
@record
class Reloaded(Message):
    """Says what a daemon has taken on: the path of its file, and names (UTF-8) of all `streams` that it declares, of
    those that have `begun` and `ended` with it, and of settings of [daemon] that take effect at the next start only
    (`later`). A stream that is declared otherwise than before has ended and begun."""

    config: bytes
    streams: Blobs = ()
    begun: Blobs = ()
    ended: Blobs = ()
    later: Blobs = ()


@_numbered(36)
@record
class Trace(Message):
    """Asks for what happens in the next `for_ms` milliseconds. Answered by TraceEvents, and by Done in the end."""

    for_ms: int


@_numbered(37)
@record
class TraceEvents(Message):
    """Lists what has ended since the last TraceEvents. `events` are rows (0, stream, worker, epoch, step, first row,
    end row, kind as in Fill, began, duration) of fill tasks, (1, stream, pid, epoch, step, 0, 0, 0, began, duration) of
    waits in next(), and (2, stream, remote worker, epoch, step, made in, 0, kind, given, duration) of batches that came
    from other machines; times in us, those of the monotonic clock. `names` are those of `streams`; `dropped` counts
    events that had no room. `tuned` are changes of numbers of workers: rows (at, stream, before, workers); `resized` of
    rings: rows (at, stream, before, batches). `whys` are the reasons of all, in this order."""

    events: Rows
    streams: Ints = ()
    names: Blobs = ()
    dropped: int = 0
    tuned: Rows = ()
    whys: Blobs = ()
    resized: Rows = ()


TRACED_FILL, TRACED_WAIT, TRACED_REMOTE = 0, 1, 2


# --- daemon <-> zygotes ---------------------------------------------------------------------------------------


@_numbered(40)
@record
class SpawnStream(Message):
    """Asks an environment zygote to fork a stream zygote that loads a program. With it: the program's descriptor, and
    one of the memory where the zygote writes its status."""

    host: int
    program_bytes: int
    spec: bytes


PLANNER = -1
"""The index of a stream's planner among its workers."""


@_numbered(41)
@record
class SpawnWorker(Message):
    """Asks a stream zygote to fork a worker. `worker_index` of `workers` is what get_worker_info returns, from 0 on.
    With it: a descriptor of the memory where the worker writes its status."""

    worker: int
    worker_index: int
    workers: int


@_numbered(42)
@record
class Spawned(Message):
    """Says that a zygote forked child `child` (the number of a host or worker). With it: pidfd, control socket, output
    pipe."""

    child: int
    pid: int


@_numbered(43)
@record
class Ready(Message):
    """Says that a zygote or worker has loaded what it needs; `note` is a warning for the log, or empty."""

    note: str = ""


@_numbered(44)
@record
class LoadFailed(Message):
    """Says that a stream zygote or worker could not load its program; it exits after this."""

    message: str
    error: bytes = b""


@_numbered(45)
@record
class ChildEnded(Message):
    """Says that a zygote has reaped child `child`; `status` is what waitpid(2) gave."""

    child: int
    status: int


@_numbered(58)
@record
class NotSpawned(Message):
    """Says that a zygote cannot fork the child `child` that it was asked for; `reason` says why: a limit on processes,
    or on memory. It may be asked again."""

    child: int
    reason: str


# --- fork -> daemon: the first message of a connection -------------------------------------------------------


@_numbered(5)
@record
class Introduce(Message):
    """Hands the daemon a connection of the trainer's: the first and only message of a connection that a fork of a
    trainer opens. With it: one end of a socket pair, whose other end the trainer has. That is a connection of the
    trainer's from now on, as if it were accepted."""


# --- trainer -> fork -------------------------------------------------------------------------------------------


@_numbered(56)
@record
class Serve(Message):
    """Asks the zygote that was forked from the trainer to serve another daemon, when its own has died. With it: a
    control socket and the output pipe's end to write to."""


@_numbered(76)
@record
class TellFingerprint(Message):
    """Asks the zygote that was forked from the trainer for Identified now, because somebody waits for it; otherwise it
    is sent when the first batches are made."""


# --- fork -> daemon and trainer --------------------------------------------------------------------------------


@_numbered(55)
@record
class Identified(Message):
    """Carries the `fingerprint` of the program of a zygote that was forked from a trainer; empty when nobody will ever
    know it. To the trainer it also carries what its parts were seen to be (changes), as opaque bytes. The trainer sends
    it, as an answer to Deciding, with the fingerprint that it has computed itself."""

    fingerprint: str
    found: bytes = b""


# --- daemon -> fork --------------------------------------------------------------------------------------------


@_numbered(47)
@record
class UseNote(Message):
    """Gives a zygote that was forked from a trainer the memory to write its status into, whose descriptor comes with
    the message."""


@_numbered(48)
@record
class WriteProgram(Message):
    """Asks a zygote that was forked from a trainer to answer with Program, and its descriptor, or with Unpicklable. A
    program of more than `limit_bytes` is not written now: TooLarge is the answer. With 0 as much may be written as
    there is comfortable room for."""

    limit_bytes: int = 0


# --- fork -> daemon --------------------------------------------------------------------------------------------


@_numbered(49)
@record
class Unpicklable(Message):
    """Says that the program can be had by fork alone; `reason` says what of it cannot be pickled."""

    reason: str


@_numbered(54)
@record
class TooLarge(Message):
    """Says that the program is not written for its size, of `buffer_bytes` or more; whether it can be pickled nobody
    may know."""

    buffer_bytes: int


@_numbered(57)
@record
class Spare(Message):
    """Hands over a spare: a zygote that was forked from a trainer has forked another like itself, which serves once it
    gets UseNote. With it: pidfd, control socket, output pipe."""

    pid: int


# --- daemon -> worker -----------------------------------------------------------------------------------------


@_numbered(46)
@record
class Enclosed(Message):
    """Stands for a message between the daemon and its children that is too long for a packet: a descriptor comes with
    this one, of a file with the packet (framing)."""

    packet_bytes: int


@_numbered(50)
@record
class UseRing(Message):
    """Lends the worker a ring to map; its descriptor comes with this message. `layout` is the stream's row layout, if
    it has one."""

    layout: bytes = b""


@_numbered(77)
@record
class UseSamples(Message):
    """Lends the worker the status of another one, which it is to help with its next task; a descriptor of that comes
    with this message."""


@_numbered(51)
@record
class Fill(Message):
    """Gives the worker fill tasks, to be done in order: rows (task, kind, epoch, step, first row, end row, slot).
    wire.fill_task reads them.

    kind 0 measures (no slot yet), 1 fills rows, 2 fills a whole batch, 3 takes the digest of a batch, whose payload
    bytes stand in the end row's place, 4 loads samples for the worker that was lent last (UseSamples), whose task
    stands in the slot's place. A batch of several slots has them chained in the segment's records. What follows the
    slot are (row, attempt) pairs of samples that are known to end their workers: they count as samples that raise;
    row -1 is __getitems__ for all rows at once. `keys` has, for planned orders, each task's sample keys as opaque
    bytes; empty for orders that are arithmetic. kind 5 makes a batch once more, beside the one that another machine has
    made, and compares the two. kind 6 checks whether the files that were read for a batch have changed: its `keys` are
    what Filled.opened had. kind 7 begins the iterator of the shard of an iterable dataset that has the batch, and takes
    the iterator's first batch; with 1 in the slot's place the worker drops the iterator that it has. `keys` has the
    shard's state there, if there is one.
    """

    tasks: Rows
    keys: Blobs = ()


MEASURE, FILL_ROWS, FILL_WHOLE, DIGEST, HELP, COMPARE, CHECK_FILES, BEGIN = 0, 1, 2, 3, 4, 5, 6, 7


# --- daemon <-> planner ---------------------------------------------------------------------------------------


@_numbered(52)
@record
class AskPlan(Message):
    """Asks for the keys of `steps` batches of `epoch`, from `first_step` on."""

    epoch: int
    first_step: int
    steps: int
    stage: int


@_numbered(53)
@record
class Rebase(Message):
    """Makes the planner plan from these states (as in Assume) from `epoch` on; what was planned from there on is
    void."""

    epoch: int
    sampler_epoch: int
    states: Blobs = ()
    attributes: bytes = b""


@_numbered(66)
@record
class Begun(Message):
    """Gives the states of a planned epoch, as in EpochStates. Stages 0 and 1 come before the epoch's first Planned,
    stage 2 before the one that gives its end; a stage that AskPlan says is known does not come."""

    epoch: int
    stage: int
    sampler_epoch: int
    states: Blobs = ()
    attributes: bytes = b""


@_numbered(67)
@record
class Planned(Message):
    """Gives the plan of consecutive batches: how many samples each has, and its keys (plan.keys); perhaps fewer batches
    than were asked for. `steps` is how many the epoch has, or -1 while the sampler goes on."""

    epoch: int
    first_step: int
    samples: Ints
    keys: Blobs
    steps: int = -1


@_numbered(68)
@record
class PlanFailed(Message):
    """Says that the sampler raised in place of the batch at (epoch, step); `error` is encoded by remote_exception."""

    epoch: int
    step: int
    error: bytes


# --- worker -> daemon -----------------------------------------------------------------------------------------


@_numbered(60)
@record
class Filled(Message):
    """Lists finished tasks, in order: rows (task, payload bytes, duration in us, samples). `sample_times` is what
    Durations.take() gives of the samples since the worker's last answer; empty: nothing. `opened` has, for each task,
    the files that user code opened for reading, as opaque bytes: CHECK_FILES takes them. It is empty where no file was
    opened; TOO_MANY_FILES stands for more than a task may name."""

    tasks: Rows
    sample_times: Ints = ()
    opened: Blobs = ()


TOO_MANY_FILES = b"\xc0"
"""What Filled.opened has for a task that has opened too many files to watch."""


@_numbered(61)
@record
class Measured(Message):
    """Says that a measuring task is done: with a `layout` the stream's batches are filled by rows, each batch
    `payload_bytes` long; without one, they are filled whole and this batch has `payload_bytes`. With `one_by_one` the
    dataset is asked for each sample by itself. `wrote` names what the first sample has written into the program; with
    `varies` the sample came out otherwise when it was made once more."""

    task: int
    payload_bytes: int
    layout: bytes = b""
    one_by_one: bool = False
    wrote: str = ""
    varies: bool = False


@_numbered(78)
@record
class Helped(Message):
    """Says that a task of helping has ended: `samples` were loaded for the other worker. Where it is not `of_use`, such
    samples cannot be handed over, or that takes too long. `opened` as in Filled."""

    task: int
    samples: int = 0
    of_use: bool = True
    duration_us: int = 0
    opened: bytes = b""


@_numbered(62)
@record
class Unfit(Message):
    """Says that the task cannot be done as asked. With payload_bytes > 0 the whole batch needs that much room; with 0 a
    row deviates from the layout (`reason` says how) and the batch must be filled whole."""

    task: int
    payload_bytes: int
    reason: str

    @classmethod
    def needing(cls, task: int, payload_bytes: int) -> Unfit:
        """Says how much room the batch needs, which is more than it has."""
        return cls(task, payload_bytes, "larger than its slots")

    @classmethod
    def deviating(cls, task: int, reason: str) -> Unfit:
        """Says how a row deviates from the layout."""
        return cls(task, 0, reason)

    @property
    def deviates(self) -> bool:
        """True when a row deviates from the layout; else the batch needs more room."""
        return self.payload_bytes == 0


@_numbered(63)
@record
class FillFailed(Message):
    """Says that the user's code raised; `error` is encoded by remote_exception."""

    task: int
    error: bytes


@_numbered(64)
@record
class BadSamples(Message):
    """Lists samples that were left out or replaced, as the spec's on_error says; comes before the task's answer. Rows
    (row, attempt, dataset index), where attempt 0 is the row's own sample and others are those that were tried in its
    place; and for each a line of text for people, in UTF-8."""

    task: int
    samples: Rows
    texts: Blobs = ()


@_numbered(65)
@record
class Digested(Message):
    """Says that a digesting task is done: `digest` as segment_layout.payload_digest has it."""

    task: int
    digest: int
    duration_us: int


@_numbered(71)
@record
class StoreFailed(Message):
    """Says that the batch is made and cannot be written where batches go; the worker keeps it. `reason` is for people:
    full, read-only, gone. The task is to be given out again, and may come out well then. `is_full`: there is no room,
    so that another batch less would help."""

    task: int
    reason: str
    is_full: bool = False


@_numbered(75)
@record
class Spent(Message):
    """Says that the task needs the program as it was handed over, which this worker cannot have anew: it ends after
    this, and the task is to be given to another one. A remote worker gives the `reason`, if there is one, for which its
    node cannot make the batch."""

    task: int
    reason: str = ""


@_numbered(72)
@record
class ShardEnded(Message):
    """Says that the task's batch does not exist: its shard of the iterable dataset has only `batches` batches in the
    epoch."""

    task: int
    batches: int


@_numbered(97)
@record
class ShardBegun(Message):
    """Says that the task's shard of the iterable dataset has begun: its iterator has given a first batch, has ended, or
    has raised."""

    task: int


@_numbered(73)
@record
class ShardCame(Message):
    """Says where a shard's iterator stands: before its batch `following`. Comes now and then, before a task's answer.
    Fields as in ShardStart."""

    epoch: int
    shard: int
    following: int
    state: bytes


@_numbered(80)
@record
class Compared(Message):
    """Says whether the rows of a task, which another machine has made, are what is made of them here, byte for byte.
    `row` is the first row that differs; -1: unknown, as the batch was made as a whole."""

    task: int
    is_equal: bool
    duration_us: int
    row: int = -1


@_numbered(94)
@record
class SamplesWrote(Message):
    """Reports that making samples has changed what the program holds: `what` is the way to it, such as "dataset.seen".
    A worker sends it to the daemon, and the daemon to trainers whose DataLoader would have made the samples in the
    process, or in the worker, that has made those before."""

    what: str


@_numbered(93)
@record
class FilesChecked(Message):
    """Answers a task of kind CHECK_FILES: `unchanged` is True when all files are what they were as the batch was
    made. `path` is the first one that is not, or empty."""

    task: int
    unchanged: bool
    path: str = ""
    duration_us: int = 0


# --- daemon -> bridge -----------------------------------------------------------------------------------------
# UseRing comes as to a worker.


@_numbered(81)
@record
class OpenBridge(Message):
    """Tells a bridge, first of all, which stream it serves and which cluster it is to reach, be it `insecure`. With it:
    the program's descriptor. Answered by Ready, or by Unreachable."""

    spec: bytes
    address: str
    insecure: bool = False


@_numbered(82)
@record
class StartRemote(Message):
    """Asks the bridge for remote workers, which may come to one actor. Answered by RemoteReady or RemoteEnded of
    each."""

    workers: Ints


@_numbered(83)
@record
class StopRemote(Message):
    """Gives a remote worker back. Answered by RemoteEnded; its tasks are not answered any more."""

    worker: int


@_numbered(84)
@record
class FillRemote(Message):
    """Gives a remote worker fill tasks as Fill has them, each of a whole batch in one slot."""

    worker: int
    tasks: Rows
    keys: Blobs = ()


@_numbered(85)
@record
class Revoke(Message):
    """Takes a task back from a remote worker. Answered by Revoked, unless its answer is on its way."""

    task: int


# --- bridge -> daemon -----------------------------------------------------------------------------------------


@_numbered(86)
@record
class Unreachable(Message):
    """Says that there is no cluster for the bridge, which ends; `is_final` when trying again would not help."""

    reason: str
    is_final: bool


@_numbered(87)
@record
class RemoteReady(Message):
    """Says that a remote worker can take tasks: on `node`, whose processor is a `processor`."""

    worker: int
    node: str
    processor: str = ""


@_numbered(88)
@record
class RemoteAnswer(Message):
    """Carries a remote worker's answer, encoded as a packet of its own. Nothing of its task writes to the ring any
    more. Of the time that it took, `transfer_us` went by on the way."""

    worker: int
    packet: bytes
    transfer_us: int


@_numbered(89)
@record
class Revoked(Message):
    """Says that nothing of a task that was taken back will write to the ring."""

    task: int


@_numbered(90)
@record
class LateAnswer(Message):
    """Says that a remote worker has come to the end of a task that was taken back: it is free for another."""

    worker: int
    task: int


@_numbered(91)
@record
class RemoteEnded(Message):
    """Says that a remote worker is gone, or never came, and that nothing of its tasks will write to the ring; it
    `is_final` when another one on this node would end like it."""

    worker: int
    reason: str
    is_final: bool = False


@_numbered(92)
@record
class RemotePrinted(Message):
    """Passes on what the user's code has printed on a node."""

    worker: int
    lines: Blobs
    left_out: int = 0


@_numbered(104)
@record
class DataDiffers(Message):
    """Reports that a remote worker has read a file that is not what it is on this machine. Nothing of its task writes
    to the ring. `what` says what differs. `is_recent`: the file was changed here while the task was under way, so the
    node's data may be the same by now."""

    worker: int
    task: int
    path: str
    what: str
    is_recent: bool = False


@_numbered(105)
@record
class RemoteWaits(Message):
    """Reports what the remote workers wait for that have not come."""

    reason: str


@_numbered(106)
@record
class BridgeUsed(Message):
    """Reports the payloads' bytes that a bridge has received since it reported last, and the CPU time that it has used
    for them. `raylet_us` is the CPU time that this machine's raylet has used since that began; 0: unknown."""

    received_bytes: int
    bridge_us: int
    raylet_us: int


# --- declaring process -> daemon ------------------------------------------------------------------------------


@_numbered(74)
@record
class TrainerEnvironment(Message):
    """Gives the environment, encoded as in a program, in which a declared stream's dataset is about to be made; comes
    before Declared. The program may come to be of another environment. On a control connection: the environment in
    which a loader is about to be made. It has no answer."""

    environment: bytes


@_numbered(70)
@record
class Declared(Message):
    """Says what a stream that the configuration declares turned out to be: its `spec`, and its program as in Program,
    whose descriptor comes with this message. LoadFailed may come in its place."""

    spec: bytes
    name: str
    program_bytes: int
