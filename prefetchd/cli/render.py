"""A report as text for people. Pure: report in, lines out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefetchd.cli.snapshot import Report
from prefetchd.wire.byte_sizes import format_bytes

BAR_CELLS = 20


def render(report: Report, socket: Path) -> list[str]:
    """The lines of `prefetchd status` for the daemon on `socket`."""
    if report.snapshot is None:
        return [f"no daemon on {socket}; the first loader starts one, or `prefetchd run` does"]
    found = report.snapshot
    daemon, workers = found["daemon"], found["workers"]
    lines = [
        f"prefetchd {daemon['software']}  {report.state}  pid {daemon['pid']}  up {_duration(daemon['up_s'])}  "
        f"workers {workers['busy']} busy of {workers['limit']}"
    ]
    if report.state != "running":
        lines.append(f"the daemon's last sign of life is {_duration(report.heartbeat_age_s or 0.0)} old")
    if not found["streams"]:
        lines.append("no streams")
    for stream in found["streams"]:
        lines += ["", *_stream(stream)]
    begun = {stream["name"] for stream in found["streams"]}
    for declared in found.get("declared", []):
        if declared["name"] not in begun:
            state = f"failed: {declared['failure']}" if declared["failure"] else "its dataset is being looked at"
            lines += ["", f"{declared['name']}  declared", f"  {state}"]
    if found.get("streams_left_out"):
        lines += ["", f"and {found['streams_left_out']} more streams, for which there is no room here"]
    return lines


def _stream(stream: dict[str, Any]) -> list[str]:
    head = f"{stream['name']}  {stream['order']}, batch {stream['batch_size']}, {stream['steps']} steps an epoch"
    head += f", seed {stream['seed']} ({stream['seed_source']})"
    if stream["lingering"]:
        head += "  [parked]" if stream["stage"] == "parked" else "  [lingering]"
    lines = [head]
    if stream["failure"]:
        return [*lines, f"  failed: {stream['failure']}"]
    ring = stream["ring"]
    if ring is None:
        return [*lines, f"  {stream['stage']}"]
    behind = f"{ring['behind']} behind, " if ring["behind"] else ""
    lines.append(
        f"  ring {_bar(ring)} {ring['ready']} ready, {ring['leased']} in use, {behind}{ring['filling']} filling, "
        f"{ring['free']} free of {ring['slots']} ({format_bytes(ring['segment_bytes'])})"
    )
    if ring.get("name_removed"):
        lines.append(
            f"  {ring['segment']} was removed from /dev/shm: the run goes on, but the ring ends with the daemon. "
            "A logout does that (RemoveIPC): `loginctl enable-linger`, or a system unit, prevents it"
        )
    lines.append(
        f"  produced {stream['produced_batches']} batches ({stream['produced_samples']} samples, "
        f"{format_bytes(stream['produced_bytes'])}), consumed {stream['consumed_batches']}, "
        f"failed {stream['failed_batches']}, worker deaths {stream['worker_deaths']}"
    )
    if stream.get("store_fault"):
        lines.append(f"  batches cannot be stored: {stream['store_fault']}")
    progress = stream.get("progress") or {}
    if progress.get("file"):
        lines.append(f"  {_progress(progress)}")
    for consumer in stream["consumers"]:
        lines.append(f"  consumer {_consumer(consumer)}")
    return lines


def _progress(progress: dict[str, Any]) -> str:
    said = f"epoch {progress['epoch']} batch {progress['step']}" if progress["epoch"] >= 0 else "nothing yet"
    text = f"progress {progress['file']}: {said}"
    if progress["unreadable"]:
        text += f", unreadable {progress['unreadable']} times"
    return f"{text}; {progress['complaint']}" if progress["complaint"] else text


def _consumer(consumer: dict[str, Any]) -> str:
    text: str = f"pid {consumer['pid']}"
    if "epoch" in consumer:
        text += f"  epoch {consumer['epoch']} step {consumer['step']}  yielded {consumer['yielded']}"
        text += f"  waited {consumer['waited_s']:.2f} s (longest {consumer['longest_wait_s'] * 1000:.0f} ms)"
    return text


def _bar(ring: dict[str, Any]) -> str:
    slots: int = max(1, ring["slots"])
    full: int = min(BAR_CELLS, round(BAR_CELLS * (ring["ready"] + ring["leased"] + ring["behind"]) / slots))
    filling: int = min(BAR_CELLS - full, -(-BAR_CELLS * ring["filling"] // slots))
    return "[" + "#" * full + "+" * filling + "." * (BAR_CELLS - full - filling) + "]"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
