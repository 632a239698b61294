"""A step is what a trainer does with a batch: on this CPU, on a GPU, or as a stand-in for one."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from prefetchd_demo.network import SmallNetwork, ThumbnailNetwork
from prefetchd_demo.stand_in import FORWARD_SHARE
from prefetchd_demo.trainer_messages import ON_CPU, ON_GPU, Plan

LEARNING_RATE = 3e-3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Tells the batch's mean loss, and how many of its images came out right."""

    loss: float
    correct: int


class Step(Protocol):
    """Trains on a batch, or evaluates it. Done when it returns."""

    def train(self, images: Tensor, labels: Tensor) -> Outcome: ...

    def evaluate(self, images: Tensor, labels: Tensor) -> Outcome: ...

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint needs."""

    def load(self, state: dict[str, Any]) -> None: ...


class NetworkStep:
    """Trains a network with Adam, on a device."""

    def __init__(self, network: nn.Module, device: str) -> None:
        self._device = device
        self._network = network.to(device)
        self._optimizer = torch.optim.Adam(self._network.parameters(), LEARNING_RATE)

    def train(self, images: Tensor, labels: Tensor) -> Outcome:
        self._network.train()
        scores, labels, loss = self._scored(images, labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return _outcome(scores, labels, loss)

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> Outcome:
        self._network.eval()
        return _outcome(*self._scored(images, labels))

    def state(self) -> dict[str, Any]:
        return {"network": self._network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _scored(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        labels = labels.to(self._device, non_blocking=True)
        scores = self._network(images.to(self._device, non_blocking=True))
        return scores, labels, cross_entropy(scores, labels)


class StandInStep:
    """Does another step, and sleeps until a GPU's would be done."""

    def __init__(self, step: Step, step_s: float) -> None:
        self._step = step
        self._step_s = step_s

    def train(self, images: Tensor, labels: Tensor) -> Outcome:
        until_s = time.monotonic() + self._step_s
        outcome = self._step.train(images, labels)
        _sleep_until(until_s)
        return outcome

    def evaluate(self, images: Tensor, labels: Tensor) -> Outcome:
        until_s = time.monotonic() + self._step_s * FORWARD_SHARE
        outcome = self._step.evaluate(images, labels)
        _sleep_until(until_s)
        return outcome

    def state(self) -> dict[str, Any]:
        return self._step.state()

    def load(self, state: dict[str, Any]) -> None:
        self._step.load(state)


def make_step(plan: Plan, classes: int) -> Step:
    """Makes the plan's step, the same in each process."""
    torch.manual_seed(0)
    if plan.step == ON_CPU:
        return NetworkStep(SmallNetwork(classes), "cpu")
    if plan.step == ON_GPU:
        from torchvision.models import resnet50

        _ask_for_equal_losses()
        return NetworkStep(resnet50(num_classes=classes), "cuda")
    return StandInStep(NetworkStep(ThumbnailNetwork(classes), "cpu"), plan.step_s)


def _ask_for_equal_losses() -> None:
    """Has a GPU compute the same in each run, where it can."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.filterwarnings("ignore", message=".*deterministic")


def _outcome(scores: Tensor, labels: Tensor, loss: Tensor) -> Outcome:
    return Outcome(loss.item(), int((scores.argmax(1) == labels).sum()))


def _sleep_until(until_s: float) -> None:
    time.sleep(max(0.0, until_s - time.monotonic()))
