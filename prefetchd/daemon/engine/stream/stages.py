"""Names what a stream and its processes can be at: the stages of a stream and of a worker, where a worker is stuck, and
whether a planner is ready. Pure."""

from __future__ import annotations

import dataclasses
import enum

from prefetchd.wire.records import record


class Stage(enum.Enum):
    """The stages of a stream's life."""

    AWAITING_PROGRAM = "awaiting program"
    LOADING = "loading"
    RUNNING = "running"
    PARKED = "parked"
    FAILED = "failed"


class WorkerStage(enum.Enum):
    """The stages of a worker's life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@record
class Stuck:
    """The place in the user's code where a worker is, the innermost frames first; `sleeps` when it waits for something
    there."""

    frames: tuple[str, ...] = ()
    sleeps: bool = False


@dataclasses.dataclass(slots=True)
class Planner:
    """The process that runs the stream's sampler. `since_s` is when its question was asked, or when it was started."""

    number: int
    since_s: float
    ready: bool = False
