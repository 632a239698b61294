"""measure runs one loader's part of the demo: its trainer runs, is killed, and is started again."""

from __future__ import annotations

import dataclasses

from prefetchd_demo.live import Live
from prefetchd_demo.own_daemon import OwnDaemon, RingFill
from prefetchd_demo.report import Figures, progress_text
from prefetchd_demo.trainer_messages import Opened, Plan, Progress
from prefetchd_demo.trainer_process import TrainerProcess


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds one loader's figures. `ring` says how full the daemon's ring was when the second trainer began; DataLoader
    has none."""

    images: int
    figures: Figures
    ring: RingFill | None


@dataclasses.dataclass(frozen=True)
class _Life:
    """Describes one trainer's life: what it opened and how full the ring was then, its last progress, and how long its
    process took to the first batch."""

    opened: Opened
    ring: RingFill | None
    last: Progress
    from_start_s: float


def measure(plan: Plan, environment: dict[str, str], daemon: OwnDaemon | None, live: Live) -> Measured:
    """Trains `plan.epochs` epochs, kills the trainer, and lets a second one train one more epoch. `daemon`: whose ring
    to show, if any.

    Raises PrefetchdError.
    """
    live.heading(plan.loader)
    first = _train(plan, environment, daemon, live)
    again = dataclasses.replace(plan, first_epoch=plan.epochs, epochs=1)
    live.heading("  the trainer is killed, and another one takes its place")
    second = _train(again, environment, daemon, live)
    figures = Figures(
        images_per_s=first.last.images_per_s,
        first_batch_s=first.last.first_batch_s,
        stalled_s=first.last.stalled_s,
        restart_first_batch_s=second.last.first_batch_s,
        restart_from_start_s=second.from_start_s,
    )
    return Measured(first.opened.images, figures, second.ring)


def _train(plan: Plan, environment: dict[str, str], daemon: OwnDaemon | None, live: Live) -> _Life:
    """Runs one trainer until its epochs are done, and kills it."""
    opened, ring, last = None, None, None
    live.show(f"epoch {plan.first_epoch + 1}", 0, 0, "starting")
    with TrainerProcess(plan, environment) as trainer:
        for message in trainer.messages():
            fill = daemon.ring_fill() if daemon is not None else None
            if isinstance(message, Opened):
                opened, ring = message, fill
            elif isinstance(message, Progress):
                last = message
                live.show(f"epoch {last.epoch + 1}", last.step, last.steps, progress_text(last, fill))
    assert opened is not None
    assert last is not None
    return _Life(opened, ring, last, last.first_batch_at_s - trainer.started_at_s)
