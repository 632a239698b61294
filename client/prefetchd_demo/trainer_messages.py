"""The demo and its trainers exchange these messages: a Plan as the only argument, then one JSON object a line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeAlias

PREFETCHD, DATALOADER, CACHED = "prefetchd", "DataLoader", "prefetchd, sample cache"
ON_CPU, ON_GPU, STAND_IN = "cpu", "gpu", "stand-in"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tells one trainer process what to do.

    loader        PREFETCHD, DATALOADER or CACHED
    step          what trains: ON_CPU a small network, ON_GPU a ResNet-50, STAND_IN some arithmetic and then a sleep
    step_s        how long a step of STAND_IN lasts
    data          an ImageFolder's root
    most_images   how many of its images to use, spread evenly; 0 means all
    buffer        PrefetchLoader's `buffer`, as written by the user; "" means its default
    epochs        where to end, counted from the beginning of the training and not from that of the process
    stops_midway  whether to stop in the middle of the last epoch
    resumes       whether to go on from `checkpoint`, which each trainer writes now and then
    cache         where CACHED keeps its samples
    """

    loader: str
    step: str
    step_s: float
    data: str
    most_images: int
    batch_size: int
    workers: int
    buffer: str
    epochs: int
    stops_midway: bool
    resumes: bool
    checkpoint: str
    cache: str


@dataclasses.dataclass(frozen=True)
class Opened:
    """The images were found; the loader is not made yet."""

    images: int
    classes: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """Tells how far the trainer is. `loss` and `accuracy` are the epoch's so far, the rest is since the trainer began.

    step               steps done of the epoch's `steps`
    first_batch_s      from the loader's construction to its first batch
    first_batch_at_s   when that was, on the system's monotonic clock
    images_per_s       from the first batch on, without it
    stalled_s          time in next() after the first batch, that of validation included
    """

    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float
    images_per_s: float
    stalled_s: float
    first_batch_s: float
    first_batch_at_s: float


@dataclasses.dataclass(frozen=True)
class Validated:
    """An epoch's validation is done. `stalled_s` is as in Progress, the rest is the epoch's."""

    epoch: int
    training_loss: float
    loss: float
    accuracy: float
    stalled_s: float


@dataclasses.dataclass(frozen=True)
class Ended:
    """The trainer is where the plan has it stop. It now waits for its end."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """The trainer was asked for something that cannot be, and says what."""

    message: str


Message: TypeAlias = Opened | Progress | Validated | Ended | Failed

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Opened, Progress, Validated, Ended, Failed)}


def encode(message: Message) -> str:
    """Returns the message as one line, its end included."""
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)}) + "\n"


def decode(line: str) -> Message:
    """Returns the message of a line. Raises KeyError, TypeError or ValueError for what encode() never makes."""
    fields = json.loads(line)
    found: Message = _KINDS[fields.pop("kind")](**fields)
    return found


def encode_plan(plan: Plan) -> str:
    return json.dumps(dataclasses.asdict(plan))


def decode_plan(text: str) -> Plan:
    """Returns the plan of a text. Raises TypeError or ValueError for what encode_plan() never makes."""
    return Plan(**json.loads(text))
