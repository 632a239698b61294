"""Rings whose slots may stand for files: whoever frees one has the file removed, and files may be removed by others.
Pure."""

from __future__ import annotations

from prefetchd.daemon.engine.commands import Command, FreeSlot
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.ring.policy import Grant, Ring

FILES = "files"


def ring_of(stream: StreamState, slots: int, commands: list[Command], *, first_generation: int = 1) -> Ring:
    """The ring of `slots` that the stream gets."""
    number = stream.number

    def freed(grant: Grant) -> None:
        commands.append(FreeSlot(number, grant.slot, grant.generation))

    on_free = freed if stream.spec.store == FILES else None
    return Ring(slots, first_generation=first_generation, on_free=on_free)


def lose(stream: StreamState, slot: int, generation: int) -> bool:
    """The ready batch in `slot` has gone. False when it is another's by now, or somebody has been offered it."""
    ring = stream.window.ring
    grant = ring.grant_of(slot, generation) if ring is not None else None
    for batch in list(stream.window.batches.values()):
        if batch.grant is not None and batch.grant is grant and batch.filled:
            stream.window.resume()
            return stream.window.drop(batch)
    return False
