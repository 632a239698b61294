"""This module declares one stream of a chaos run: its batches are files, and its trainer knows nothing of the
daemon."""

from __future__ import annotations

import os
from pathlib import Path

from prefetchd_client import BatchDirectory

from benchmarks.chaos.rings import ReadyBatch
from benchmarks.chaos.work import WORKS, Dice, Work
from prefetchd.progress.two_lines import parse
from prefetchd.wire.batch_file import STREAM_FILE, position_of
from prefetchd.wire.stream_spec import Position

STREAMS = """
[streams.files]
dataset = "benchmarks.chaos.declared:dataset"
dataset_args = {{length = {work.length}, width = {work.width}, notes = "{notes}"}}
cwd = "{cwd}"
batch_size = {work.batch_size}
shuffle = true
seed = {work.seed}
buffer = {work.buffer}
store = {{files = "{directory}"}}
progress = {{file = "{progress}"}}
"""


def dataset(length: int, width: int, notes: str) -> Dice:
    """Makes the dataset that the declaration names."""
    return Dice(length, width, 0.0, notes)


def declare(directory: Path) -> None:
    """Declares the stream for daemons that are started from now on, by whomever."""
    work = _work()
    files = _files(directory)
    files.mkdir()
    config = directory / "streams.toml"
    config.write_text(
        STREAMS.format(
            work=work, cwd=os.getcwd(), directory=files, progress=_progress(directory), notes=directory / "samples"
        )
    )
    os.environ["PREFETCHD_CONFIG"] = str(config)


def ready_files(directory: Path) -> set[ReadyBatch]:
    """Returns the batches that lie ahead of the trainer. For when the daemon is dead and no other has begun."""
    at = _at(directory)
    positions = map(position_of, os.listdir(_files(directory)))
    return {ReadyBatch(_work().seed, *each) for each in positions if each is not None and each >= at}


def left_over(directory: Path) -> list[str]:
    """Returns what an orderly end should not have left: all but the description, and the batches that lie ahead."""
    at = _at(directory)
    names = set(os.listdir(_files(directory))) - {STREAM_FILE}
    return sorted(name for name in names if (position := position_of(name)) is None or position < at)


class FilesLoader(BatchDirectory):
    """Adds to BatchDirectory what a trainer of a chaos run asks of its loader."""

    def __init__(self, directory: Path) -> None:
        super().__init__(_files(directory), _progress(directory))

    def close(self) -> None:
        """Does nothing: there is no connection."""


def _work() -> Work:
    return next(each for each in WORKS if each.files)


def _at(directory: Path) -> Position:
    """Returns where the trainer says that it is; the beginning when it has said nothing yet."""
    path = _progress(directory)
    found = parse(path.read_bytes()) if path.exists() else ((0, 0), True)
    assert not isinstance(found, str), found
    return found[0]


def _files(directory: Path) -> Path:
    return directory / "files"


def _progress(directory: Path) -> Path:
    return directory / "progress"
