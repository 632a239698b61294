"""Holds what one stream has on other machines: its bridge, its remote workers, and what is known of their nodes.
Pure."""

from __future__ import annotations

import dataclasses
import enum

from prefetchd.daemon.engine.stream.batches import Batch, Piece

CHECKED_EVERY = 1000
"""Of so many batches of a node one is also made here, and compared; and its first one."""

SMOOTHING = 0.125
DEVIATIONS = 4.0
"""A task is overdue that takes so many mean deviations more than the mean, as a retransmission timer has it (RFC
6298, 2)."""

SPARE_LEAD = 1.25
"""Batches are given out so much further ahead than those are that become ready meanwhile."""


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
    which it still is; while there are some it gets no others."""

    number: int
    node: str = ""
    is_stopping: bool = False
    tasks: dict[int, RemoteTask] = dataclasses.field(default_factory=dict)
    late: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(slots=True)
class Node:
    """What is known of a node, and was counted of it. As long as it is not `is_proved` its workers have one task
    together, and no other while its batch, the `checked` one, is compared. One that `is_distrusted` gets no more."""

    processor: str = ""
    is_proved: bool = False
    is_distrusted: bool = False
    checked: Batch | None = None
    batches: int = 0
    payload_bytes: int = 0
    transfer_us: int = 0
    lost: int = 0
    mismatches: int = 0


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
    `why_not` says in words what is wrong, so that there is no remote work; empty while there may be. `used_s` is when a
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
        self.is_final = False
        self.failures = 0
        self.again_s = 0.0
        self.used_s = 0.0
        self.is_given_back = False
        self.has_asked_program = False
        self.hedges_won = 0
        self.hedges_lost = 0

    def wanted_by(self, workers: int) -> None:
        """Takes a new consumer's wish. Where there is no bridge it counts as the first one: what was final may have
        been mended before it came."""
        self.wanted = workers
        if not self.bridge:
            self.is_final, self.failures, self.again_s, self.why_not = False, 0, 0.0, ""

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
        """Forgets those that have gone longest, beyond MOST_NODES; one that is distrusted never."""
        used = {worker.node for worker in self.workers.values()}
        gone = [name for name, node in self.nodes.items() if name not in used and not node.is_distrusted]
        for name in gone[: max(0, len(gone) - MOST_NODES)]:
            del self.nodes[name]

    def is_check_due(self, node: Node) -> bool:
        """True when the node's next batch is to be compared with one that is made here."""
        return not node.is_proved or node.batches % CHECKED_EVERY == 0

    def may_take(self, worker: RemoteWorker, most: int) -> bool:
        """True when the worker may have another task; `most` is how many a worker has at once."""
        node = self.nodes.get(worker.node)
        if node is None or worker.is_stopping or worker.late or len(worker.tasks) >= most or node.is_distrusted:
            return False
        if node.is_proved:
            return True
        if node.checked is not None and not node.checked.done and not node.checked.cancelled:
            return False
        return not any(each.tasks or each.late for each in self.workers.values() if each.node == worker.node)

    def doubt(self, node: str) -> None:
        """Compares each batch of `node` until one is equal."""
        self.nodes.setdefault(node, Node()).is_proved = False

    def compared(self, node: str, *, is_equal: bool) -> None:
        """Notes what the comparison of a batch of `node` has shown."""
        found = self.nodes.setdefault(node, Node())
        if is_equal:
            found.is_proved = True
        else:
            found.mismatches += 1
            found.is_distrusted = True
