"""cached_pictures makes real pictures to train on, without any download: random crops of ten photographs. The class is
the photograph."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from PIL import Image

from prefetchd.wire.errors import RemoteError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.trusted_paths import make_directory, own_home

WIDTH, HEIGHT = 500, 375
SMALLEST_CROP = 0.6
"""The smallest crop's sides, relative to the largest crop of that shape."""
JPEG_QUALITY = 90
CACHE_VERSION = 1
LOCK_TIMEOUT_S = 120.0

# All colour photographs that both packages carry in their wheels (stereo pairs but once).
PHOTOGRAPHS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "hubble": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}


def cache_directory(env: Mapping[str, str]) -> Path:
    """Returns the pictures' directory, which is never one that other users may write to."""
    home = env.get("HOME") or own_home()
    if given := env.get("XDG_CACHE_HOME"):
        return Path(given) / "prefetchd" / "demo"
    if home:
        return Path(home) / ".cache" / "prefetchd" / "demo"
    return Path(tempfile.gettempdir()) / f"prefetchd-{os.geteuid()}" / "demo"


def cached_pictures(
    count: int, threads: int, written: Callable[[Path, int], None], env: Mapping[str, str] = os.environ
) -> Path:
    """Returns a directory of `count` pictures for ImageFolder, and writes them if no earlier run has. The same `count`
    makes the same bytes.

    `written(directory, so far)` is called as they are written, also with 0. Raises RemoteError when they cannot be.
    """
    cache = cache_directory(env)
    directory = cache / f"{count}-pictures-{CACHE_VERSION}"
    try:
        make_directory(cache, "Choose another place with $XDG_CACHE_HOME")
        lock = LockFile(directory.with_name(directory.name + ".lock"))
        if not lock.acquire(LOCK_TIMEOUT_S):
            raise RemoteError(f"another demo has been writing {directory} for too long")
        try:
            # With the lock: another run may just have written them.
            if sum(1 for _ in directory.glob("*/*.jpg")) != count:
                _replace(directory, count, threads, lambda so_far: written(directory, so_far))
        finally:
            lock.release()
    except OSError as error:
        raise RemoteError(f"cannot write pictures to {cache}: {error}; XDG_CACHE_HOME chooses another place") from None
    return directory


def _replace(directory: Path, count: int, threads: int, written: Callable[[int], None]) -> None:
    """Writes the pictures beside the directory's place, and moves them there once all are written."""
    unfinished = directory.with_name(directory.name + ".unfinished")
    for stale in (unfinished, directory):
        shutil.rmtree(stale, ignore_errors=True)
    try:
        _write(unfinished, count, threads, written)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(directory: Path, count: int, threads: int, written: Callable[[int], None]) -> None:
    photographs = []
    for name in PHOTOGRAPHS:
        (directory / name).mkdir(parents=True)
        photographs.append((name, _photograph(name)))
    written(0)
    pool = ThreadPoolExecutor(threads)
    try:
        tasks = []
        for number in range(count):
            name, photograph = photographs[number % len(photographs)]
            tasks.append(pool.submit(write_crop, photograph, number, directory / name / f"{number:06d}.jpg"))
        for so_far, task in enumerate(as_completed(tasks), 1):
            task.result()
            written(so_far)
    finally:
        pool.shutdown(cancel_futures=True)


def write_crop(photograph: Image.Image, seed: int, path: Path) -> None:
    """Writes a random crop of the photograph, as a JPEG file of WIDTH x HEIGHT."""
    chance = random.Random(seed)
    width, height = photograph.size
    scale = min(width / WIDTH, height / HEIGHT) * chance.uniform(SMALLEST_CROP, 1)
    left = chance.uniform(0, width - WIDTH * scale)
    top = chance.uniform(0, height - HEIGHT * scale)
    box = (left, top, left + WIDTH * scale, top + HEIGHT * scale)
    crop = photograph.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, box=box)
    crop.save(path, "JPEG", quality=JPEG_QUALITY)


def _photograph(name: str) -> Image.Image:
    package, path = PHOTOGRAPHS[name]
    # To import the packages would take a second.
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    with Image.open(Path(spec.submodule_search_locations[0]) / path) as photograph:
        converted: Image.Image = photograph.convert("RGB")
    return converted
