"""What does a JPEG cost, decoded by the crop? Pictures a CPU-second, of all processes that take part.

    python -m benchmarks.images [--rounds N] [--uint8] [--large] [--validate] [--dali PYTHON]

RandomResizedCrop(224), flip, ToTensor, Normalize of the demo's 2,000 pictures of 500x375, batches of 64, 2 workers:
`prefetchd_client.images.Decode` in PrefetchLoader and in DataLoader, torchvision's own loader, which is Pillow's, in
both, and DALI's fused pipeline for the CPU, if PYTHON is an interpreter that has it. --uint8 leaves the pixels as they
are. --large takes pictures of 2000x1500, mosaics of sixteen, in batches of 16. --validate has Resize(256) and
CenterCrop(224) instead.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from PIL import Image
from prefetchd_client import PrefetchLoader
from prefetchd_client.images import Decode
from prefetchd_demo.pictures import HEIGHT, JPEG_QUALITY, WIDTH, cached_pictures
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.harness import endless, interleave, own_daemon, report
from benchmarks.overhead import status

PICTURES = 2000
LARGE_PICTURES = 320
TILES = 4
"""A large picture is so many wide, and so many high."""
BATCH, LARGE_BATCH = 64, 16
BATCHES_A_ROUND = 60
"""Many more than are in hand, which at a round's beginning and its end may differ."""
WORKERS = 2
RING_BATCHES = 8
OURS = "Decode in prefetchd"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def steps(uint8: bool, validate: bool) -> transforms.Compose:
    found: list[Any] = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    if validate:
        found = [transforms.Resize(256), transforms.CenterCrop(224)]
    if uint8:
        return transforms.Compose([*found, transforms.PILToTensor()])
    return transforms.Compose([*found, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


@contextlib.contextmanager
def directory_of(large: bool) -> Iterator[Path]:
    """Yields a directory of pictures for ImageFolder."""
    small = cached_pictures(PICTURES, WORKERS, lambda directory, so_far: None)
    if not large:
        yield small
        return
    chance, files = random.Random(0), sorted(small.glob("*/*.jpg"))
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as name:
        (Path(name) / "mosaics").mkdir()
        for number in range(LARGE_PICTURES):
            mosaic = Image.new("RGB", (TILES * WIDTH, TILES * HEIGHT))
            for column, row in itertools.product(range(TILES), repeat=2):
                mosaic.paste(Image.open(chance.choice(files)), (column * WIDTH, row * HEIGHT))
            mosaic.save(Path(name) / "mosaics" / f"{number:04d}.jpg", quality=JPEG_QUALITY)
        yield Path(name)


def cpu_s() -> float:
    """Returns the CPU time of this process, of the daemon, and of all that come from them."""
    roots = [psutil.Process(), psutil.Process(status()["daemon"]["pid"])]
    processes = {each for root in roots for each in (root, *root.children(recursive=True))}
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def a_cpu_second(loader: DataLoader[Any], batch_size: int) -> float:
    """Returns pictures a CPU-second. What was ready at the start does not count."""
    stream = endless(loader)
    for _ in itertools.islice(stream, RING_BATCHES + 1):
        pass
    before_s = cpu_s()
    for batch in itertools.islice(stream, BATCHES_A_ROUND):
        del batch
    return BATCHES_A_ROUND * batch_size / (cpu_s() - before_s)


def dali_a_cpu_second(python: str, directory: Path, batch_size: int, uint8: bool, validate: bool) -> float:
    """Runs DALI's pipeline in an interpreter of its own. Returns pictures a CPU-second."""
    program = str(Path(__file__).with_name("dali_pipeline.py"))
    numbers = map(str, (batch_size, BATCHES_A_ROUND, WORKERS))
    kinds = "uint8" if uint8 else "float32", "validate" if validate else "train"
    command = [python, program, str(directory), *numbers, *kinds]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["pictures_a_cpu_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uint8", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--dali", metavar="PYTHON", help="an interpreter that has nvidia-dali")
    arguments = parser.parse_args()
    transform = steps(arguments.uint8, arguments.validate)
    batch_size = LARGE_BATCH if arguments.large else BATCH
    common: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "drop_last": True, "num_workers": WORKERS}
    with directory_of(arguments.large) as directory, own_daemon(workers=WORKERS), contextlib.ExitStack() as stack:
        by_pillow = ImageFolder(str(directory), transform)
        by_crop = ImageFolder(str(directory), Decode(transform), loader=str)
        loaders: dict[str, DataLoader[Any]] = {
            OURS: stack.enter_context(PrefetchLoader(by_crop, buffer=RING_BATCHES, **common)),
            "Pillow in prefetchd": stack.enter_context(PrefetchLoader(by_pillow, buffer=RING_BATCHES, **common)),
            "Decode in DataLoader": DataLoader(by_crop, persistent_workers=True, **common),
            "Pillow in DataLoader": DataLoader(by_pillow, persistent_workers=True, **common),
        }
        contestants = {name: lambda loader=loader: a_cpu_second(loader, batch_size) for name, loader in loaders.items()}
        to_reach: dict[str, float | None] = {"Pillow in DataLoader": 1.7, "Decode in DataLoader": None}
        if arguments.dali:
            kinds = arguments.uint8, arguments.validate
            contestants["DALI"] = lambda: dali_a_cpu_second(arguments.dali, directory, batch_size, *kinds)
            to_reach["DALI"] = 1.15
        figures = interleave(arguments.rounds, contestants)
    kind = "uint8" if arguments.uint8 else "float32"
    title = f"images, {'2000x1500' if arguments.large else '500x375'}, {kind}"
    report(title + (", validation" if arguments.validate else ""), "pictures/CPU-second", figures, OURS, to_reach)


if __name__ == "__main__":
    main()
