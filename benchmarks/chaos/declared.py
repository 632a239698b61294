"""The stream of a chaos run that is declared: its batches are files, and its trainer knows nothing of the daemon."""

from __future__ import annotations

import os
from pathlib import Path

from prefetchd_client import BatchDirectory

from benchmarks.chaos.work import WORKS, Dice

STREAMS = """
[streams.files]
dataset = "benchmarks.chaos.declared:dataset"
dataset_args = {{length = {work.length}, width = {work.width}}}
cwd = "{cwd}"
batch_size = {work.batch_size}
shuffle = true
seed = {work.seed}
buffer = {work.buffer}
store = {{files = "{directory}"}}
progress = {{file = "{progress}"}}
"""


def dataset(length: int, width: int) -> Dice:
    """The declaration names it."""
    return Dice(length, width, 0.0)


def declare(directory: Path) -> None:
    """Daemons that are started from now on, by whomever, have the stream."""
    work = next(each for each in WORKS if each.files)
    files = _files(directory)
    files.mkdir()
    config = directory / "streams.toml"
    config.write_text(STREAMS.format(work=work, cwd=os.getcwd(), directory=files, progress=_progress(directory)))
    os.environ["PREFETCHD_CONFIG"] = str(config)


class FilesLoader(BatchDirectory):
    """With what a trainer of a chaos run asks of its loader."""

    def __init__(self, directory: Path) -> None:
        super().__init__(_files(directory), _progress(directory))

    def close(self) -> None:
        """There is no connection."""


def _files(directory: Path) -> Path:
    return directory / "files"


def _progress(directory: Path) -> Path:
    return directory / "progress"
