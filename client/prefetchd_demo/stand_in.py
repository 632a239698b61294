"""A stand-in takes the place of a GPU's training step on a machine without one: it lasts as long, and leaves the CPUs
alone."""

from __future__ import annotations

A100_IMAGES_PER_S = 938
"""ResNet-50 on one A100, trained in TF32, as PyTorch does unless it is told otherwise. NVIDIA's own figure, in
github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5: training performance."""
FORWARD_SHARE = 1 / 3
"""Validation's part of a step: it goes forward, and going backward takes twice that."""


def a100_step_s(batch_size: int) -> float:
    """Returns how long a step of a ResNet-50 on an A100 lasts."""
    return batch_size / A100_IMAGES_PER_S


def explain_stand_in(batch_size: int, step_s: float) -> str:
    """Returns the first thing that the demo says where it has no GPU, or was told to use none."""
    what = f"A stand-in for a GPU trains: each step lasts {step_s * 1000:.0f} ms, asleep, and leaves the CPUs alone"
    if step_s == a100_step_s(batch_size):
        return f"{what}. So long takes ResNet-50 on an A100 for {batch_size} images (TF32, {A100_IMAGES_PER_S} img/s)."
    return f"{what}."
