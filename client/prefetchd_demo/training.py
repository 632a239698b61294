"""This module is one trainer, a process of its own: python -m prefetchd_demo.training PLAN.

It tells how it gets on through stdout. Once its epochs are done it waits to be killed, as a trainer may be at any
moment; it also ends with whoever listens.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import torch
from prefetchd_client.loader.loader import PrefetchLoader
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from prefetchd.wire.errors import CallerError
from prefetchd_demo.network import SmallNetwork
from prefetchd_demo.trainer_messages import (
    PREFETCHD,
    Ended,
    Failed,
    Message,
    Opened,
    Plan,
    Progress,
    decode_plan,
    encode,
)

TELL_EVERY_S = 0.1
LEARNING_RATE = 3e-3
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_images(plan: Plan) -> ImageFolder:
    """Returns the images with the usual transforms for training. Raises CallerError when there are none."""
    transform = Compose(
        [RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(), Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    try:
        images = ImageFolder(plan.data, transform)
    except FileNotFoundError as error:
        raise CallerError(f"--data {plan.data}: {error}") from None
    if 0 < plan.most_images < len(images):
        found = images.samples
        images.samples = [found[place * len(found) // plan.most_images] for place in range(plan.most_images)]
    return images


def make_loader(plan: Plan, images: ImageFolder) -> DataLoader[Any]:
    """Makes the plan's loader, with the same arguments for both kinds; `buffer` is the daemon's alone."""
    if plan.loader != PREFETCHD:
        return DataLoader(
            images, batch_size=plan.batch_size, shuffle=True, num_workers=plan.workers, persistent_workers=True
        )
    buffer = int(plan.buffer) if plan.buffer.isdecimal() else plan.buffer or None
    loader = PrefetchLoader(images, batch_size=plan.batch_size, shuffle=True, num_workers=plan.workers, buffer=buffer)
    if plan.first_epoch:
        loader.set_epoch(plan.first_epoch)
    return loader


class Trainer:
    """Runs the training loop, with a stopwatch around next()."""

    def __init__(self, plan: Plan, out: TextIO) -> None:
        self._plan = plan
        self._out = out
        self._began_s = 0.0
        self._first_batch_at_s = 0.0
        self._stalled_s = 0.0
        self._trained_images = 0
        self._told_at_s = 0.0

    def run(self) -> None:
        """Trains, and reports on it. Raises CallerError, and whatever the loader raises."""
        plan = self._plan
        images = open_images(plan)
        self._tell(Opened(len(images), len(images.classes)))
        network = SmallNetwork(len(images.classes))
        if plan.first_epoch:
            network.load_state_dict(torch.load(plan.checkpoint, weights_only=True))
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
        self._began_s = time.monotonic()
        loader = make_loader(plan, images)
        for epoch in range(plan.first_epoch, plan.first_epoch + plan.epochs):
            self._train_epoch(epoch, loader, network, optimizer)
        torch.save(network.state_dict(), plan.checkpoint)
        self._tell(Ended())

    def _train_epoch(
        self, epoch: int, loader: DataLoader[Any], network: SmallNetwork, optimizer: torch.optim.Optimizer
    ) -> None:
        batches, steps = iter(loader), len(loader)
        seen, correct, loss_sum = 0, 0, 0.0
        for step in range(1, steps + 1):
            images, labels = self._next(batches)
            scores = network(images)
            loss = cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen += len(labels)
            loss_sum += loss.item() * len(labels)
            correct += int((scores.argmax(1) == labels).sum())
            if time.monotonic() - self._told_at_s >= TELL_EVERY_S or step == steps:
                self._told_at_s = time.monotonic()
                self._tell(self._progress(epoch, step, steps, loss_sum / seen, correct / seen))

    def _next(self, batches: Iterator[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        asked_s = time.monotonic()
        images, labels = next(batches)
        got_s = time.monotonic()
        if not self._first_batch_at_s:
            self._first_batch_at_s = got_s
        else:
            self._stalled_s += got_s - asked_s
            self._trained_images += len(labels)
        return images, labels

    def _progress(self, epoch: int, step: int, steps: int, loss: float, accuracy: float) -> Progress:
        images_per_s = self._trained_images / (time.monotonic() - self._first_batch_at_s)
        return Progress(
            epoch=epoch,
            step=step,
            steps=steps,
            loss=loss,
            accuracy=accuracy,
            images_per_s=images_per_s,
            stalled_s=self._stalled_s,
            first_batch_s=self._first_batch_at_s - self._began_s,
            first_batch_at_s=self._first_batch_at_s,
        )

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
        Trainer(decode_plan(sys.argv[1]), out).run()
    except BrokenPipeError:
        return 1
    except CallerError as error:
        out.write(encode(Failed(str(error))))
        out.flush()
        return 1
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
