"""Job is what one process of a contestant is told: whose loader, which work, and where its data lie."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.checks import Checked
from benchmarks.peers.feeds import FEEDS, Data, Feed


@dataclasses.dataclass(frozen=True)
class Job:
    """`spawned_s` is time.monotonic() as the process was started; `trainer` is 0, or 1 for the second of two; `role` is
    what a process is for that does not measure a work: "prepare", "trainer", "producer"."""

    contestant: str
    work: str
    data: Data
    mark: str
    spawned_s: float = 0.0
    is_quick: bool = False
    trainer: int = 0
    role: str = ""

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"benchmarks.peers.contestants.{self.contestant}")

    @property
    def window_s(self) -> float:
        """How long throughput is measured."""
        return 1.0 if self.is_quick else 3.0

    def loader(self, feed: Feed | str) -> Checked:
        """Makes the contestant's loader: it yields batches, an epoch for each iter()."""
        wanted = FEEDS[feed] if isinstance(feed, str) else feed
        made: Iterable[Any] = self.module.loader(wanted, self.data, self)
        return Checked(made, wanted)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields: dict[str, Any] = json.loads(text)
        fields["data"] = Data(**{name: Path(path) for name, path in fields["data"].items()})
        return cls(**fields)
