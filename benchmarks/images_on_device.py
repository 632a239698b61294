"""What does a GPU that decodes the JPEGs save? Pictures a second, and a CPU-second of all processes that take part.

    python -m benchmarks.images_on_device [--rounds N] [--workers N] [--device cpu]

RandomResizedCrop(224), flip, floats, Normalize of the demo's 2,000 pictures of 500x375, batches of 256, which end as
floats on the device: files in the ring and `DecodeOnDevice`, `Decode` in the workers, and Pillow's pixels from
DataLoader(pin_memory=True). The two that decode on CPUs send bytes, and make floats of them on the device.

First, how far nvJPEG's pixels are from torchvision's, in steps of 255, where a picture is resized as a whole. With
`--device cpu` the same library's decoder for CPUs takes nvJPEG's place: that this runs can be seen so, no more.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.images import Decode, DecodeOnDevice, collate_encoded, encoded_picture
from prefetchd_demo.machine import describe_machine
from prefetchd_demo.pictures import cached_pictures
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch
from benchmarks.images import MEAN, STD, cpu_s

PICTURES = 2000
COMPARED = 500
BATCH = 256
BATCHES_A_ROUND = 60
RING_BATCHES = 8
OURS = "DecodeOnDevice"
CROPS: list[Any] = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]


def distances(directory: Path, device: torch.device) -> None:
    """Prints how far the device's pixels are from torchvision's."""
    transform = transforms.Compose([transforms.Resize((224, 224)), transforms.PILToTensor()])
    decode = DecodeOnDevice(transform, device)
    files = sorted(directory.glob("*/*.jpg"))[:: PICTURES // COMPARED]
    means, worst, differing = [], 0, 0.0
    for first in range(0, len(files), BATCH):
        some = files[first : first + BATCH]
        (ours,) = decode(collate_encoded([(encoded_picture(str(file)),) for file in some]))
        for pixels, file in zip(ours.cpu(), some, strict=True):
            apart = (pixels.int() - transform(pil_loader(file)).int()).abs()
            means.append(apart.double().mean().item())
            worst = max(worst, int(apart.max()))
            differing += (apart > 0).double().mean().item() / len(files)
    print("| pictures | mean | worst picture's mean | worst pixel | pixels that differ |\n|---|---|---|---|---|")
    mean = sum(means) / len(means)
    print(f"| {len(files)} | {mean:.4f} | {max(means):.3f} | {worst} | {differing:.2%} |", flush=True)


class Floats(torch.nn.Module):
    """Makes normalised floats of a batch's bytes, where they lie."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.mean = torch.tensor(MEAN, device=device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=device).view(3, 1, 1)

    def forward(self, batch: Any) -> Any:
        pictures, labels = batch
        return [(pictures.float().div_(255) - self.mean) / self.std, labels]


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(stream: Iterator[Any], device: torch.device, seen: dict[str, list[float]], name: str) -> float:
    """Returns pictures a second, over many more than are in hand; notes in `seen` those a CPU-second."""
    for _ in itertools.islice(stream, RING_BATCHES + 1):
        pass
    wait_for(device)
    before_s, elapsed = cpu_s(), stopwatch()
    for pictures, _ in itertools.islice(stream, BATCHES_A_ROUND):
        assert pictures.shape == (BATCH, 3, 224, 224)
        assert pictures.device.type == device.type
    wait_for(device)
    seen.setdefault(name, []).append(BATCHES_A_ROUND * BATCH / (cpu_s() - before_s))
    return BATCHES_A_ROUND * BATCH / elapsed()


def moved(loader: DataLoader[Any], device: torch.device, floats: Floats) -> Iterator[Any]:
    for pictures, labels in endless(loader):
        yield floats([pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(f"There is no CUDA device here (torch {torch.__version__}): nothing was measured.")
        sys.exit(1)
    device = torch.device(arguments.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "no GPU: the decoder for CPUs"
    print(f"{where}\n{describe_machine()}")
    directory = cached_pictures(PICTURES, arguments.workers, lambda directory, so_far: None)
    distances(directory, device)
    on_device = [*CROPS, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    to_bytes = transforms.Compose([*CROPS, transforms.PILToTensor()])
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": arguments.workers}
    ring: dict[str, Any] = {"buffer": RING_BATCHES, "device": str(device)}
    files = ImageFolder(str(directory), encoded_picture, loader=str)
    by_crop = ImageFolder(str(directory), Decode(to_bytes), loader=str)
    theirs = DataLoader(
        ImageFolder(str(directory), to_bytes), persistent_workers=True, pin_memory=device.type == "cuda", **common
    )
    decode, floats = DecodeOnDevice(transforms.Compose(on_device), device), Floats(device)
    with (
        own_daemon(workers=arguments.workers),
        PrefetchLoader(files, collate_fn=collate_encoded, device_transform=decode, **ring, **common) as ours,
        PrefetchLoader(by_crop, device_transform=floats, **ring, **common) as cropped,
    ):
        streams = {
            OURS: endless(ours),
            "Decode in the workers": endless(cropped),
            "Pillow in DataLoader": moved(theirs, device, floats),
        }
        seen: dict[str, list[float]] = {}
        contestants = {
            name: lambda stream=stream, name=name: measure(stream, device, seen, name)
            for name, stream in streams.items()
        }
        figures = interleave(arguments.rounds, contestants)
        del streams, contestants
    others: dict[str, float | None] = {"Decode in the workers": None, "Pillow in DataLoader": None}
    report(f"JPEGs to floats on {device}, {arguments.workers} workers", "pictures/s", figures, OURS, others)
    report("the same, of all processes", "pictures/CPU-second", seen, OURS, others)


if __name__ == "__main__":
    main()
