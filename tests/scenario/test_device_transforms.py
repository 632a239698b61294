"""Transforms on a device: where and how they run, and what they draw, whoever made the batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from prefetchd_client.device.images import CropFlipNormalize
from prefetchd_client.seeding import seeded

from prefetchd.wire.seed_words import device_seed
from tests.scenario.datasets import Made, Numbers, equal
from tests.scenario.device_streams import loader_of
from tests.scenario.oracle import epoch_batches

pytestmark = pytest.mark.usefixtures("shared_daemon")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TEXT = (Path(__file__).parents[2] / "docs" / "device.md").read_text("utf-8")


class Weighing(torch.nn.Module):
    """Its weight asks for gradients; it notes where it was moved to, and what `look` finds when it runs."""

    def __init__(self, look) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.moved: list[torch.device] = []
        self.seen: list[object] = []
        self._look = look

    def to(self, device):
        self.moved.append(device)
        return super().to(device)

    def forward(self, batch):
        self.seen.append(self._look())
        return [batch[0] * self.weight, batch[1]]


def test_a_module_is_moved_once_and_runs_on_the_copies_stream_without_gradients(bench):
    module = Weighing(bench.backend.current_stream)
    with loader_of(Numbers(40), device=bench.name, device_transform=module) as loader:
        assert module.moved == [], "before the first next() no device is touched"
        assert not any(weighed.requires_grad for weighed, _ in loader)
    assert module.moved == [bench.backend.device]
    assert len(module.seen) == 10
    assert all(each == module.seen[0] for each in module.seen)
    assert module.seen[0] != bench.backend.current_stream()
    if bench.is_fake:
        assert {*bench.fake.transfers} == {module.seen[0]}


def test_a_module_on_the_cpu_runs_without_gradients():
    module = Weighing(torch.is_grad_enabled)
    with loader_of(Numbers(40), device="cpu", device_transform=module) as loader:
        for weighed, numbers in loader:
            assert not weighed.requires_grad
            assert torch.equal(weighed[:, 0], numbers.float())
    assert module.seen == [False] * 10
    assert torch.is_grad_enabled()


def test_a_transform_draws_the_same_whatever_the_number_of_workers(bench):
    transform = bench.adding(lambda: torch.randint(0, 1000, (4, 4)))
    runs = []
    for workers in (1, 3):
        common = {"stream": f"{bench.name} {id(bench)} {workers}", "num_workers": workers}
        with loader_of(Numbers(100), device=bench.name, device_transform=transform, **common) as loader:
            found = [bench.read(each[0]) for each in loader]
            runs.append([each() for each in found])
    assert equal(*runs)


# --- pictures ---


def picture(index: int) -> tuple[torch.Tensor, int]:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(0, 256, (3, 32, 40), dtype=torch.uint8, generator=generator), index


@pytest.mark.parametrize("device", DEVICES)
def test_pictures_are_cropped_flipped_and_normalised_as_the_device_seed_says(device):
    crop = CropFlipNormalize(24, mean=MEAN, std=STD, padding=4).to(device)
    dataset = Made(picture, 40)
    with loader_of(dataset, device=device, device_transform=crop) as loader:
        for epoch in range(2):
            for step, (found, batch) in enumerate(
                zip(loader, epoch_batches(dataset, epoch, batch_size=4, seed=5, shuffle=True), strict=True)
            ):
                generator = torch.cuda.default_generators[0] if device == "cuda" else None
                with seeded(device_seed(5, epoch, step, 0), generator):
                    wanted = crop([each.to(device) for each in batch])
                assert equal(found, wanted)
                assert (found[0].shape, found[0].dtype) == ((4, 3, 24, 24), torch.float32)


def test_what_the_programs_of_the_doc_get():
    """On the CPU."""
    loop, graph, augmented = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert "graph.replay()" in graph, "that one needs a GPU"
    seen = []
    for program in (loop, augmented):
        assert 'device="cuda"' in program
        names: dict[str, Any] = {}
        exec(program.replace('device="cuda"', 'device="cpu"'), names)
        with names["loader"] as loader:
            seen += [(pictures.shape, pictures.dtype, len(labels)) for pictures, labels in loader]
    # Random numbers in four batches, and pictures of bytes, as floats now, in two.
    floats = [((256, 3, size, size), torch.float32, 256) for size in (32, 32, 32, 32, 224, 224)]
    assert seen == floats
