"""Says what would be lost if another daemon took a daemon's place: rings that it could not adopt, and trainers that it
could not talk to. Pure: it looks at a snapshot.

1. A daemon that tells no layouts is of a version that drops its rings when it ends.
2. Rings of other layouts than ours are adopted by nobody who is like us. They are lost with their batches; trainers get
   these from the next daemon, which makes them again.
3. Trainers that speak another protocol end with an error when they meet the next daemon.
4. Batches that are files are nobody's to lose: whichever daemon comes finds them in their directory.
"""

from __future__ import annotations

from typing import Any

from prefetchd import __version__
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.layout_versions import LAYOUTS
from prefetchd.wire.messages import PROTOCOL_VERSION


def why_not_kept(snapshot: dict[str, Any]) -> str:
    """Returns why rings of the daemon would not be adopted by one of this version; empty when they would (rules 1 and
    2)."""
    about = snapshot["daemon"]
    if "layouts" not in about:
        return f"prefetchd {about['software']} drops its rings when it ends"
    differing = [name for name in LAYOUTS if about["layouts"].get(name) != LAYOUTS[name]]
    if not differing:
        return ""
    told = ", ".join(f"{name} {about['layouts'].get(name)} there, {LAYOUTS[name]} here" for name in differing)
    return f"prefetchd {about['software']} and this {__version__} lay rings out differently ({told})"


def losses(snapshot: dict[str, Any]) -> list[str]:
    """Returns a line for each thing that is lost when a daemon of this version takes the place of that one."""
    found = []
    if why := why_not_kept(snapshot):
        found += [f"{line}: {why}" for line in rings_of(snapshot)]
    protocol = snapshot["daemon"]["protocol"]
    if protocol != PROTOCOL_VERSION:
        pids = sorted({each["pid"] for stream in snapshot["streams"] for each in stream["consumers"]})
        found += [
            f"the trainer {pid} speaks protocol {protocol}, this prefetchd {PROTOCOL_VERSION}: it ends with an error"
            for pid in pids
        ]
    return found


def rings_of(snapshot: dict[str, Any]) -> list[str]:
    """Returns a line for each ring: its stream, the batches that are ready in it, and its size."""
    return [
        f"stream {stream['name']!r}: {_batches(stream['ring'])} batches ready, "
        f"{format_bytes(stream['ring']['segment_bytes'])}"
        for stream in snapshot["streams"]
        if has_ring(stream)
    ]


def has_ring(stream: dict[str, Any]) -> bool:
    """True when the stream has batches that its daemon keeps or drops; batches that are files stay in any case (rule
    4)."""
    return stream["ring"] is not None and stream.get("store") != "files"


def _batches(ring: dict[str, Any]) -> int:
    return int(ring["ready"] / max(1.0, ring["slots_a_batch"]))
