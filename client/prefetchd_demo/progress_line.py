"""progress_line and validated_line tell on one line how far a trainer is."""

from __future__ import annotations

from prefetchd_demo.own_daemon import RingFill
from prefetchd_demo.trainer_messages import Progress, Validated


def progress_line(progress: Progress, ring: RingFill | None) -> str:
    """Returns the line while an epoch trains; it leaves out a `ring` that is None."""
    parts = [
        f"loss {progress.loss:.2f}",
        f"accuracy {progress.accuracy * 100:3.0f} %",
        f"{progress.images_per_s:,.0f} img/s",
    ]
    if ring is not None:
        parts.append(f"ring {ring.ready}/{ring.slots}")
    return "  ".join([*parts, f"stalled {progress.stalled_s:.1f} s"])


def validated_line(validated: Validated) -> str:
    """Returns the line of an epoch that has been validated."""
    return (
        f"loss {validated.training_loss:.2f}  validation loss {validated.loss:.2f}  "
        f"accuracy {validated.accuracy * 100:.0f} %  stalled {validated.stalled_s:.1f} s so far"
    )
