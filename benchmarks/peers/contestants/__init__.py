"""This package has the contestants: each file sets its loader up as its own documentation advises, and names it.

Each has `loader(feed, data, job)`, an iterable of batches, and, where it has a format of its own, `prepare(data)`,
which writes that once; one that shares batches has `produce(job)`, which serves them; STARTS_ALONE says that a second
trainer has to wait until the first one has begun. What is known of a contestant without its packages stands here.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.works import NAMES


@dataclasses.dataclass(frozen=True)
class Contestant:
    """Its file's name, how tables call it, whose venv it has, the distributions whose versions are told, and the works
    that it is not measured in, with the reason."""

    name: str
    title: str
    venv: str
    distributions: tuple[str, ...]
    cannot: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _but_for(reason: str, *works: str) -> dict[str, str]:
    return {work: reason for work in NAMES if work not in works}


CONTESTANTS = {
    each.name: each
    for each in (
        Contestant("prefetchd", "prefetchd", "prefetchd", ("tensordict",)),
        Contestant(
            "prefetchd_decode",
            "prefetchd, Decode",
            "prefetchd",
            ("nvidia-nvimgcodec-cu13",),
            dict.fromkeys(("prepared", "tokens"), "it decodes JPEGs; without them it is prefetchd"),
        ),
        Contestant("dataloader", "DataLoader", "base", ("torch", "torchvision")),
        Contestant("stateful_dataloader", "StatefulDataLoader", "torchdata", ("torchdata",)),
        Contestant("torchdata_nodes", "torchdata.nodes", "torchdata", ("torchdata",)),
        Contestant("spdl", "SPDL", "spdl", ("spdl",)),
        Contestant(
            "dali",
            "DALI, CPU",
            "dali",
            ("nvidia-dali-cuda120",),
            {"tokens": "no reader of tokens: its external_source hands on what Python code has loaded"},
        ),
        Contestant(
            "tensordict",
            "tensordict",
            "tensordict",
            ("tensordict",),
            _but_for("it holds tensors and decodes nothing: see prepared pictures", "prepared", "tokens"),
        ),
        Contestant("mosaicml_streaming", "MosaicML Streaming", "streaming", ("mosaicml-streaming",)),
        Contestant("litdata", "LitData", "litdata", ("litdata",)),
        Contestant("webdataset", "WebDataset", "webdataset", ("webdataset",)),
        Contestant("grain", "Grain", "grain", ("grain",)),
        Contestant(
            "tensorsocket",
            "TensorSocket",
            "tensorsocket",
            ("tensorsocket",),
            _but_for("it shares another loader's batches: alone it is that loader, see DataLoader", "two_trainers"),
        ),
    )
}
"""In the order of the tables."""


def documentation(name: str) -> str:
    """Returns the docstring of a contestant's file, whose packages need not be there."""
    text = Path(__file__).with_name(f"{name}.py").read_text("utf-8")
    return ast.get_docstring(ast.parse(text)) or ""
