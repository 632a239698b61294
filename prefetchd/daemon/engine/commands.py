"""Commands are what the engine asks of the world, in the order in which it must happen. The loop carries them out."""

from __future__ import annotations

from prefetchd.wire.messages import Message, Published
from prefetchd.wire.records import record
from prefetchd.wire.segment_layout import SlotRecord
from prefetchd.wire.stream_spec import Position


class Command:
    """The base of all commands."""

    __slots__ = ()


@record
class Send(Command):
    """Send a message to a session."""

    session: int
    message: Message


@record
class WriteOffers(Command):
    """Write the offers of `published`, which is sent to the session next, into the stream's ring."""

    session: int
    published: Published


@record
class Wake(Command):
    """Publish to the session: execute Engine.publications as soon as it can take a message."""

    session: int


@record
class ShareRing(Command):
    """Send RingOpened, with a descriptor of the stream's ring, to a session."""

    session: int
    stream: int


@record
class CloseSession(Command):
    """Close the session's connection once what was sent has left."""

    session: int


@record
class StartStream(Command):
    """Have a new host load the stream's program; answer with host_ready, load_failed, host_died or
    host_not_started."""

    stream: int
    host: int


@record
class StartSpare(Command):
    """Let the spare of `former`, which died, go on as `host`; answer as to StartStream."""

    stream: int
    host: int
    former: int


@record
class BindHost(Command):
    """Give the stream a host that was forked from a trainer."""

    host: int
    stream: int


@record
class DropHost(Command):
    """End the host, the workers that it still has, and what it has in reserve."""

    host: int


@record
class AskProgram(Command):
    """Have the host write its program, unless that is of more than `limit_bytes` (0: than there is comfortable room
    for); answer with program_kept or program_refused."""

    host: int
    limit_bytes: int


@record
class Identify(Command):
    """Write the stream's fingerprint, which has become known, into its ring."""

    stream: int


@record
class StartWorker(Command):
    """Have the host fork a worker; answer with worker_ready, worker_died or worker_not_started."""

    stream: int
    host: int
    worker: int
    worker_index: int
    workers: int


@record
class StopWorker(Command):
    """Let the worker end after the task it is at; `kill` does not wait for that. Answer with worker_died."""

    worker: int
    kill: bool = False


@record
class LookAt(Command):
    """Find out where in the code the worker is; answer with worker_looked_at, within about a second."""

    stream: int
    worker: int


@record
class Assign(Command):
    """Give the worker fill tasks, or ask the planner."""

    worker: int
    message: Message


@record
class LendRing(Command):
    """Send UseRing, with a descriptor of the stream's ring, to a worker."""

    worker: int
    stream: int


@record
class OpenBridge(Command):
    """Start a bridge to the cluster for the stream; answer with bridge_ready or bridge_ended."""

    stream: int
    bridge: int


@record
class CloseBridge(Command):
    """End the bridge at once, and the remote workers that it has; no event about them follows."""

    bridge: int


@record
class LendRingTo(Command):
    """Send UseRing, with a descriptor of the stream's ring, to its bridge."""

    bridge: int
    stream: int


@record
class TellBridge(Command):
    """Send a message to a bridge."""

    bridge: int
    message: Message


@record
class CreateRing(Command):
    """Make the stream's segment; answer with ring_created, ring_reserved... (or ring_short), or with ring_failed.

    A batch takes `batch_bytes`; a slot has room for `slot_bytes`. `layout` is the row layout or empty.
    """

    stream: int
    batch_bytes: int
    slot_bytes: int
    layout: bytes


@record
class LendSamples(Command):
    """Lend `worker` the status of `owner`, which it is to help with its next task."""

    worker: int
    owner: int


@record
class GrowRing(Command):
    """Put memory behind the ring's slots up to `slots`; answer with ring_reserved... or ring_short."""

    stream: int
    slots: int


@record
class ShrinkRing(Command):
    """Take the memory behind the ring's slots from `slots` on: nobody uses them."""

    stream: int
    slots: int


@record
class WriteSlot(Command):
    """Write a slot's record into the segment."""

    stream: int
    slot: int
    record: SlotRecord


@record
class FreeSlot(Command):
    """Remove the file of the batch that had `slot` with `generation`."""

    stream: int
    slot: int
    generation: int


@record
class ParkStream(Command):
    """End the stream's hosts and workers, none of which is at a task; ring and program stay."""

    stream: int


NOBODY, ZYGOTE = -1, 0
"""Two stand-ins for a worker's number in ReportStall.suspect: no process, and the stream's zygote."""


@record
class ReportStall(Command):
    """Tell the trainer, and the log, why its cursor's next() has waited for `waited_s`.

    `suspect` is a worker of `stream` (or ZYGOTE, or NOBODY) whose status and stack show more; if `cause` is empty, what
    the worker is at is the cause. `at` is the position of the batch that it makes. `knob` is what to turn. `forked`
    says that its zygote is a fork of the trainer.
    """

    session: int
    cursor: int
    stream: int
    position: Position
    waited_s: float
    cause: str
    knob: str = ""
    suspect: int = NOBODY
    at: Position | None = None
    forked: bool = False


@record
class DropStream(Command):
    """Forget the stream: end its hosts and workers, unlink its segments."""

    stream: int


@record
class Log(Command):
    """Write one line into the log; `level` is one of logging's names in lower case."""

    level: str
    event: str
    fields: tuple[tuple[str, object], ...] = ()

    @classmethod
    def line(cls, level: str, event: str, /, **fields: object) -> Log:
        """Returns a line with these fields, in this order."""
        return cls(level, event, tuple(fields.items()))
