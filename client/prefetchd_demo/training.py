"""This module is one trainer, a process of its own: python -m prefetchd_demo.training PLAN.

It tells how it gets on through stdout. Once it is where its plan has it stop it waits to be killed, as a trainer may be
at any moment; it also ends with whoever listens.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import torch

from prefetchd.wire.errors import CallerError
from prefetchd_demo.checkpoint import Checkpoint, Sums, read_checkpoint
from prefetchd_demo.images import open_images
from prefetchd_demo.loaders import TrainingLoader, make_loader
from prefetchd_demo.steps import make_step
from prefetchd_demo.stopwatch import Stopwatch
from prefetchd_demo.trainer_messages import (
    ON_CPU,
    Ended,
    Failed,
    Message,
    Opened,
    Plan,
    Progress,
    Validated,
    decode_plan,
    encode,
)

TELL_EVERY_S = 0.1
CHECKPOINTS_AN_EPOCH = 4


class Trainer:
    """Runs the training loop, as a script does that may be killed."""

    def __init__(self, plan: Plan, out: TextIO, wait_for_end: Callable[[], object]) -> None:
        """Opens the images, and makes whatever trains and the loaders. `wait_for_end` is called once it is where the
        plan has it stop. Raises CallerError."""
        self._plan = plan
        self._out = out
        self._wait_for_end = wait_for_end
        self._told_at_s = 0.0
        images = open_images(plan)
        self._tell(Opened(images.count, images.classes))
        self._steps = -(-images.training_count // plan.batch_size)
        self._checkpoint_steps = max(1, self._steps // CHECKPOINTS_AN_EPOCH)
        self._step = make_step(plan, images.classes)
        self._begins_at = (0, 0)
        self._sums = Sums()
        # Whoever was killed before the first one begins again.
        checkpoint = read_checkpoint(plan.checkpoint) if plan.resumes and Path(plan.checkpoint).exists() else None
        self._watch = Stopwatch()
        self._training = TrainingLoader(plan, images.training, 0 if plan.step == ON_CPU else self._checkpoint_steps)
        self._validation = None if images.validation is None else make_loader(plan, images.validation, None)
        if checkpoint is not None:
            self._step.load(checkpoint.training)
            self._training.resume(checkpoint.loader, checkpoint.step)
            self._begins_at, self._sums = (checkpoint.epoch, checkpoint.step), checkpoint.sums
        self._trained_images = 0

    def run(self) -> None:
        """Trains, and reports on it. Raises whatever the loader raises."""
        first_epoch, first_step = self._begins_at
        for epoch in range(first_epoch, self._plan.epochs):
            self._train_epoch(epoch, first_step)
            if self._validation is not None:
                self._tell(self._validated(epoch, self._validation))
            first_step, self._sums = 0, Sums()
            self._write_checkpoint(epoch + 1, 0)
        self._end()

    def _train_epoch(self, epoch: int, step: int) -> None:
        """Trains from `step` on, to the epoch's end or to where the plan has it stop."""
        stops_at = 0
        if self._plan.stops_midway and epoch == self._plan.epochs - 1:
            # Some steps after a checkpoint, as it happens.
            stops_at = min(self._steps, self._steps // 2 + self._checkpoint_steps // 2 + 1)
        for images, labels in self._watch.timed(self._training.epoch(epoch)):
            outcome = self._step.train(images, labels)
            self._sums.add(len(labels), outcome.correct, outcome.loss)
            step += 1
            self._trained_images += len(labels)
            if step % self._checkpoint_steps == 0 and step < self._steps:
                self._write_checkpoint(epoch, step)
            if time.monotonic() - self._told_at_s >= TELL_EVERY_S or step in (stops_at, self._steps):
                self._told_at_s = time.monotonic()
                self._tell(self._progress(epoch, step))
            if step == stops_at:
                self._end()

    def _validated(self, epoch: int, batches: Iterable[Any]) -> Validated:
        sums = Sums()
        for images, labels in self._watch.timed(iter(batches)):
            outcome = self._step.evaluate(images, labels)
            sums.add(len(labels), outcome.correct, outcome.loss)
        return Validated(epoch, self._sums.mean_loss, sums.mean_loss, sums.accuracy, self._watch.stalled_s)

    def _write_checkpoint(self, epoch: int, step: int) -> None:
        checkpoint = Checkpoint(epoch, step, self._sums, self._step.state(), self._training.state())
        checkpoint.write(self._plan.checkpoint)

    def _progress(self, epoch: int, step: int) -> Progress:
        return Progress(
            epoch=epoch,
            step=step,
            steps=self._steps,
            loss=self._sums.mean_loss,
            accuracy=self._sums.accuracy,
            images_per_s=self._trained_images / self._watch.since_first_batch_s(),
            stalled_s=self._watch.stalled_s,
            first_batch_s=self._watch.first_batch_s,
            first_batch_at_s=self._watch.first_batch_at_s,
        )

    def _end(self) -> None:
        self._tell(Ended())
        self._wait_for_end()

    def _tell(self, message: Message) -> None:
        self._out.write(encode(message))
        self._out.flush()


def main() -> int:
    """Runs the trainer. Returns exit code 1 after a Failed; any other error is a traceback."""
    # What anybody prints must not come among the messages.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # All cores but one are for the workers.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        Trainer(decode_plan(sys.argv[1]), out, sys.stdin.read).run()
    except BrokenPipeError:
        return 1
    except CallerError as error:
        out.write(encode(Failed(str(error))))
        out.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
