"""Makes rings whose slots may stand for files: a slot that is freed has its file removed, and others may remove files.
Pure."""

from __future__ import annotations

from prefetchd.daemon.engine.commands import Command, FreeSlot
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.ring.policy import Grant, Ring

FILES = "files"


def ring_of(stream: StreamState, slots: int, commands: list[Command], *, first_generation: int = 1) -> Ring:
    """Returns a ring of `slots` for the stream; where its batches are files, each slot that is freed has its file
    removed."""
    number = stream.number

    def freed(grant: Grant) -> None:
        commands.append(FreeSlot(number, grant.slot, grant.generation))

    on_free = freed if stream.spec.store == FILES else None
    return Ring(slots, first_generation=first_generation, on_free=on_free)


def lose(stream: StreamState, slot: int, generation: int) -> bool:
    """Drops the ready batch in `slot`, whose file has gone. False when the slot is another's by now, or somebody has
    been offered the batch."""
    ring = stream.window.ring
    grant = ring.grant_of(slot, generation) if ring is not None else None
    for batch in list(stream.window.batches.values()):
        if batch.grant is not None and batch.grant is grant and batch.filled:
            stream.window.resume()
            return stream.window.drop(batch)
    return False
