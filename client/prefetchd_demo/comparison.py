"""measure runs one loader's part of the demo: its trainer runs, is killed, and is started again."""

from __future__ import annotations

import dataclasses

from prefetchd_demo.live import Live
from prefetchd_demo.own_daemon import OwnDaemon, RingFill
from prefetchd_demo.progress_line import progress_line, validated_line
from prefetchd_demo.trainer_messages import ON_CPU, Opened, Plan, Progress, Validated
from prefetchd_demo.trainer_process import TrainerProcess


@dataclasses.dataclass(frozen=True)
class Life:
    """Describes one trainer's life: what it opened and how full the ring was then (DataLoader has none), its last
    progress and validation, and how long its process took to the first batch."""

    opened: Opened
    ring: RingFill | None
    last: Progress
    validated: Validated | None
    from_start_s: float

    @property
    def stalled_s(self) -> float:
        """All that it waited for after its first batch."""
        return max(self.last.stalled_s, self.validated.stalled_s if self.validated else 0.0)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds what one loader's trainers told: the one that was killed, and the one that took its place."""

    first: Life
    second: Life


def measure(plan: Plan, environment: dict[str, str], daemon: OwnDaemon | None, live: Live) -> Measured:
    """Trains as `plan` says, kills the trainer, and lets a second one go on: for one epoch more ON_CPU, else with the
    rest of the last one. `daemon`: whose ring to show, if any.

    Raises PrefetchdError.
    """
    live.heading(plan.loader)
    first = _train(plan, environment, daemon, live)
    last = first.last
    again = dataclasses.replace(plan, resumes=True, stops_midway=False)
    if plan.step == ON_CPU:
        again = dataclasses.replace(again, epochs=plan.epochs + 1)
        live.heading("  the trainer is killed, and another one takes its place")
    else:
        live.heading(f"  killed at step {last.step} of {last.steps} of epoch {last.epoch + 1}, and started again")
    return Measured(first, _train(again, environment, daemon, live))


def start_once(plan: Plan, environment: dict[str, str], live: Live) -> None:
    """Runs a trainer up to its first batch. Before anything is measured: what Python compiles and the disk reads when
    something is started for the first time on a machine is not to be the first loader's alone. Raises
    PrefetchdError."""
    live.show("preparing", 0, 0, f"{plan.loader} is started once: Python compiles what it imports")
    with TrainerProcess(plan, environment) as trainer:
        for message in trainer.messages():
            if isinstance(message, Progress):
                return


def _train(plan: Plan, environment: dict[str, str], daemon: OwnDaemon | None, live: Live) -> Life:
    """Runs one trainer until it is where the plan has it stop, and kills it."""
    opened, ring, last, validated = None, None, None, None
    # Validation is the last of an epoch's steps on the screen.
    more = 0 if plan.step == ON_CPU else 1
    live.show(f"epoch {plan.epochs if plan.resumes else 1}", 0, 0, "starting")
    with TrainerProcess(plan, environment) as trainer:
        for message in trainer.messages():
            fill = daemon.ring_fill() if daemon is not None else None
            if isinstance(message, Opened):
                opened, ring = message, fill
            elif isinstance(message, Progress):
                last = message
                live.show(f"epoch {last.epoch + 1}", last.step, last.steps + more, progress_line(last, fill))
            elif isinstance(message, Validated):
                validated = message
                assert last is not None
                live.show(f"epoch {last.epoch + 1}", last.steps + more, last.steps + more, validated_line(validated))
    assert opened is not None
    assert last is not None
    return Life(opened, ring, last, validated, last.first_batch_at_s - trainer.started_at_s)
