"""Conditions say what the demo's figures hold for."""

from __future__ import annotations

import dataclasses

from prefetchd_demo.own_daemon import RingFill


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Says what the figures hold for. `ring` is how full it was when the new trainer began."""

    images: int
    epochs: int
    batch_size: int
    workers: int
    ring: RingFill | None
    machine: str

    def amounts(self) -> str:
        """Says how much was trained, without a full stop."""
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return f"{self.images:,} images, {epochs}, batches of {self.batch_size}, {self.workers} workers each"

    def found(self) -> list[str]:
        """Says in what state the ring was, if there was one."""
        if self.ring is None:
            return []
        return [f"The new trainer found {self.ring.ready} batches ready in the ring of {self.ring.slots}."]
