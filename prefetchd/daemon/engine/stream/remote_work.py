"""Holds what one stream has on other machines: its bridge, its remote workers, and what is known of their nodes.
Pure."""

from __future__ import annotations

import dataclasses
import enum
from array import array

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.wire.stream_spec import Position

COMPARED_EVERY_S = 15.0
"""Seconds after which a node is compared again, so that each one is within a minute as the budget allows."""
COMPARING_SHARE = 0.01
"""The share of the filling here that may go into comparing, beside what proves a node."""

SMOOTHING = 0.125
DEVIATIONS = 4.0
"""A task is overdue that takes so many mean deviations more than the mean, as a retransmission timer has it (RFC
6298, 2)."""

SPARE_LEAD = 1.25
"""Batches are given out so much further ahead than those are that become ready meanwhile."""


FAILURES_BORNE = 3
"""Tasks in a row that may fail on a node before it gets no more for a while."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 600.0
"""Seconds for which a node that fails gets no tasks: doubled each time, until one of its batches is made."""

STEP_BITS = 40

MOST_NODES = 64
"""The nodes that are remembered of which none has a worker any more: an autoscaler brings others every day."""


class BridgeStage(enum.Enum):
    """The stages of a bridge's life."""

    OPENING = "opening"
    OPEN = "open"


@dataclasses.dataclass(slots=True, eq=False)
class RemoteTask:
    """A batch that a remote worker makes: given at `given_s`, when the stream had made `ready` batches. One that
    `is_revoked` is to be made here."""

    number: int
    piece: Piece
    given_s: float
    ready: int
    is_revoked: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class RemoteWorker:
    """A worker on another machine. `node` is empty until it is ready. `late` are tasks that were taken back, and at
    which it still is; while there are some it gets no others. A worker that `is_leaving` gets none either, and
    `is_stopping` once it has none."""

    number: int
    node: str = ""
    is_leaving: bool = False
    is_stopping: bool = False
    tasks: dict[int, RemoteTask] = dataclasses.field(default_factory=dict)
    late: set[int] = dataclasses.field(default_factory=set)


class Comparing(enum.Enum):
    """Says how much of a batch from another machine is made here once more."""

    NOTHING = "nothing"
    ROW = "row"
    ALL = "all"


@dataclasses.dataclass(slots=True)
class Node:
    """What is known of a node, and was counted of it. As long as it is not `is_proved` its workers have one task
    together, and no other while its batch, the `checked` one, is compared. A node that `is_distrusted` gets no more
    tasks, and one that fails none until `again_s`; `why` has the reason. `since_doubt` counts its batches since it was
    proved anew, `made` has the positions of those that no comparison has shown to be right."""

    processor: str = ""
    is_proved: bool = False
    is_distrusted: bool = False
    checked: Batch | None = None
    batches: int = 0
    payload_bytes: int = 0
    transfer_us: int = 0
    lost: int = 0
    mismatches: int = 0
    compared: int = 0
    compared_s: float = 0.0
    since_doubt: int = 0
    failures: int = 0
    pauses: int = 0
    again_s: float = 0.0
    why: str = ""
    suspects: int = 0
    made: array[int] = dataclasses.field(default_factory=lambda: array("q"))

    def was_made(self, position: Position) -> None:
        """Note that the node has made the batch, which may be handed out as it is."""
        epoch, step = position
        self.made.append(epoch << STEP_BITS | step)

    def handed_out(self, until: Position) -> list[Position]:
        """Return the positions of the batches that it made and that come before `until`."""
        positions = {divmod(number, 1 << STEP_BITS) for number in self.made}
        return sorted(position for position in positions if position < until)


class Arrivals:
    """Estimates when a remote worker's answer arrives, and how many batches the stream makes meanwhile."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._deviation_s = 0.0
        self._meanwhile = 0.0

    @property
    def are_known(self) -> bool:
        return self._mean_s > 0.0

    @property
    def overdue_after_s(self) -> float:
        """How long after it was given a task is overdue."""
        return self._mean_s + DEVIATIONS * self._deviation_s

    def lead(self, otherwise: int) -> int:
        """Returns how far ahead a batch must be given out to be there in time; `otherwise` while nothing is known."""
        return int(self._meanwhile * SPARE_LEAD) + 1 if self.are_known else otherwise

    def came(self, took_s: float, meanwhile: int) -> None:
        """Notes that a task took so long, and that so many batches became ready meanwhile."""
        if not self.are_known:
            self._mean_s, self._deviation_s, self._meanwhile = took_s, took_s / 2, float(meanwhile)
            return
        self._deviation_s += 2 * SMOOTHING * (abs(took_s - self._mean_s) - self._deviation_s)
        self._mean_s += SMOOTHING * (took_s - self._mean_s)
        self._meanwhile += SMOOTHING * (meanwhile - self._meanwhile)


class RemoteWork:
    """One stream's remote workers, as many as `wanted`. `bridge` is the number of its bridge (0: none), at `stage`.
    `why_not` says in words what is wrong, so that there is no remote work; empty while there may be. `waits_for` says
    what workers wait for that have not come. `used_s` is when a
    worker last came or was given a task; those that had none for long are `is_given_back`."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.bridge = 0
        self.stage = BridgeStage.OPENING
        self.has_ring = False
        self.workers: dict[int, RemoteWorker] = {}
        self.nodes: dict[str, Node] = {}
        self.arrivals = Arrivals()
        self.why_not = ""
        self.waits_for = ""
        self.is_final = False
        self.failures = 0
        self.again_s = 0.0
        self.used_s = 0.0
        self.is_given_back = False
        self.has_asked_program = False
        self.hedges_won = 0
        self.hedges_lost = 0
        self.comparing_us = 0
        self.receiving_s_a_gb: float | None = None
        self.share: int | None = None

    def wanted_by(self, workers: int) -> None:
        """Takes a new consumer's wish. Where there is no bridge it counts as the first one: what was final may have
        been mended before it came."""
        self.wanted = workers
        if not self.bridge:
            self.is_final, self.failures, self.again_s, self.why_not = False, 0, 0.0, ""

    @property
    def allowed(self) -> int:
        """The workers that it may have: its share while another stream waits for CPUs."""
        return self.wanted if self.share is None else min(self.wanted, self.share)

    @property
    def is_busy(self) -> bool:
        """True while a remote worker has a task of which something may still be written."""
        return any(worker.tasks for worker in self.workers.values())

    @property
    def is_at_work(self) -> bool:
        """True while there are remote workers that can take tasks."""
        return any(worker.node for worker in self.workers.values())

    def node_of(self, worker: RemoteWorker) -> Node:
        return self.nodes.setdefault(worker.node, Node())

    def forget_nodes(self) -> None:
        """Forgets those that have gone longest, beyond MOST_NODES; one that is distrusted or paused never."""
        used = {worker.node for worker in self.workers.values()}
        gone = [
            name for name, node in self.nodes.items() if name not in used and not node.is_distrusted and not node.why
        ]
        for name in gone[: max(0, len(gone) - MOST_NODES)]:
            del self.nodes[name]

    def comparing_due(self, node: Node, now_s: float, fill_us: int) -> Comparing:
        """Return how much of the node's next batch is to be compared with what is made of it here: all of its 1st, 2nd,
        4th, 8th, ... since it was proved, and from then on a row now and then, as far as `fill_us`, the time that
        filling has taken here, allows."""
        coming = node.since_doubt + 1
        if not node.is_proved or coming & (coming - 1) == 0:
            return Comparing.ALL
        if now_s - node.compared_s < COMPARED_EVERY_S or self.comparing_us > COMPARING_SHARE * fill_us:
            return Comparing.NOTHING
        return Comparing.ROW

    def may_take(self, worker: RemoteWorker, most: int, now_s: float) -> bool:
        """True when the worker may have another task; `most` is how many a worker has at once."""
        node = self.nodes.get(worker.node)
        if node is None or worker.is_leaving or worker.is_stopping or worker.late or len(worker.tasks) >= most:
            return False
        if node.is_distrusted:
            return False
        if node.is_proved:
            return True
        if now_s < node.again_s or (node.checked is not None and not node.checked.done and not node.checked.cancelled):
            return False
        return not any(each.tasks or each.late for each in self.workers.values() if each.node == worker.node)

    @property
    def why_unused(self) -> str:
        """The reason why none of the nodes that have workers gets tasks; empty while one does."""
        nodes = [node for name, node in self.nodes.items() if any(each.node == name for each in self.workers.values())]
        return nodes[0].why if nodes and all(node.why for node in nodes) else ""

    def doubt(self, node: str) -> None:
        """Compares each batch of `node` until one is equal."""
        found = self.nodes.setdefault(node, Node())
        found.is_proved, found.since_doubt = False, 0

    def worked(self, node: Node) -> None:
        """Note that the node has made a batch."""
        node.failures = 0
        if not node.is_distrusted:
            node.why = ""

    def failed(self, name: str, why: str, now_s: float) -> bool:
        """Note that a task has failed on the node for this reason. Return True when the node gets no tasks for a
        while."""
        node = self.nodes.setdefault(name, Node())
        node.failures += 1
        if node.failures % FAILURES_BORNE or node.is_distrusted:
            return False
        node.again_s = now_s + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**node.pauses)
        node.pauses += 1
        node.why = why
        self.doubt(name)
        return True

    def distrust(self, name: str, why: str) -> None:
        """Give the node no more tasks. The next batch of each other node is compared: what has gone wrong on one may
        have on all."""
        for other in self.nodes:
            self.doubt(other)
        node = self.nodes.setdefault(name, Node())
        node.mismatches += 1
        node.is_distrusted, node.why = True, why

    def compared(self, name: str, position: Position, took_us: int, *, is_whole: bool) -> None:
        """Note that a batch of the node, or one row of it, was equal to what was made here."""
        node = self.nodes.setdefault(name, Node())
        node.compared += 1
        if is_whole:
            node.is_proved, node.pauses = True, 0
        else:
            self.comparing_us += took_us
            node.was_made(position)
