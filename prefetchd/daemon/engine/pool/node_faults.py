"""Excludes nodes whose batches are wrong, for good, and nodes on which tasks fail, for a while. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from prefetchd.daemon.engine.commands import Command, Log, Send
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.wire.messages import Output
from prefetchd.wire.stream_spec import Position

MOST_RANGES = 200
RANGES_PRINTED = 8


def exclude(stream: StreamState, node: str, why: str, position: Position, commands: list[Command]) -> None:
    """Give the node no more tasks, as its batch at `position` was wrong, and drop all that it has made and no trainer
    has yielded. Name the batches that were handed out before, to the last one that a trainer may have yielded by now:
    trainers report their progress now and then."""
    assert stream.remote is not None
    found = stream.remote.nodes.get(node)
    until = max((cursor.offered for cursor in stream.window.cursors.values()), default=(0, 0))
    suspects = found.handed_out(until) if found is not None else []
    stream.remote.distrust(node, why)
    stream.remote.nodes[node].suspects = len(suspects)
    epoch, step = position
    commands.append(
        Log.line(
            "error",
            "a node makes other batches",
            stream=stream.name,
            node=node,
            processor=found.processor if found is not None else "",
            epoch=epoch,
            step=step,
            why=why,
            handed_out=len(suspects),
            handed_out_batches=ranges(suspects, MOST_RANGES),
            then="it is not used any more",
        )
    )
    for consumer, recall in stream.offering.distrust(node):
        commands.append(Send(consumer, recall))  # type: ignore[arg-type]
    before = "none of its batches was handed out before"
    if suspects:
        before = (
            f"{len(suspects)} of its batches were handed out before, and may be wrong: "
            f"{ranges(suspects, RANGES_PRINTED)} (the log has all)"
        )
    tell_trainers(
        stream,
        f"node {node} makes other batches than this machine, and is not used any more: {why}; {before}",
        commands,
    )


def tell_trainers(stream: StreamState, text: str, commands: list[Command]) -> None:
    """Print a line in each of the stream's trainers, once in each process."""
    shown = f"prefetchd: stream {stream.name!r}: {text}"
    commands += [Send(session, Output(0, shown, topic=shown)) for session in stream.consumers]


def ranges(positions: Sequence[Position], most: int) -> str:
    """Return sorted positions in words, such as "epoch 0: 3, 7-9; epoch 1: 0", with `most` ranges at most."""
    shown: list[tuple[int, int, int]] = []
    for epoch, step in positions:
        if shown and shown[-1][0] == epoch and shown[-1][2] == step - 1:
            shown[-1] = (epoch, shown[-1][1], step)
        else:
            shown.append((epoch, step, step))
    parts = []
    for epoch, group in itertools.groupby(shown[:most], key=lambda each: each[0]):
        parts.append(f"epoch {epoch}: " + ", ".join(f"{a}-{b}" if b > a else f"{a}" for _, a, b in group))
    return "; ".join(parts) + (f" and {len(shown) - most} more ranges" if len(shown) > most else "")
