"""Keeps directories of batch files: claimed before anything starts, kept over restarts, and looked after."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.adoption import FoundRing
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.segments.resources import StreamResources
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.ring.batch_files import BatchFiles
from prefetchd.ring.file_ring import FileRing
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.os_errors import why
from prefetchd.wire.remote_exception import summarize_exception
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_READY, SlotRecord
from prefetchd.wire.stream_spec import Position, StreamSpec

LOOK_EVERY_S = 1.0

log = logging.getLogger("prefetchd")


class FileStreams:
    """Keeps the directories of one daemon's streams."""

    def __init__(self, engine: Engine, rings: StreamRings) -> None:
        self._engine = engine
        self._rings = rings
        self._looked_s = 0.0
        self.faults: dict[str, str] = {}

    def claim(self, directories: Iterable[str]) -> None:
        """Claims directories: nobody else's batches are in them from now on. Raises CallerError; then none of them is
        claimed."""
        claimed: list[BatchFiles] = []
        try:
            for directory in directories:
                if directory not in self._rings.files:
                    claimed.append(BatchFiles(directory))
                    claimed[-1].open()
        except BaseException:
            for files in claimed:
                files.close()
            raise
        self._rings.files |= {files.directory: files for files in claimed}

    def give_up(self, directory: str, *, remove: bool) -> None:
        """Gives up the directory of a stream that has ended; its batches are removed with it if `remove`."""
        files = self._rings.files.pop(directory, None)
        self.faults.pop(directory, None)
        if files is not None:
            if remove:
                files.remove_all()
            files.close()

    def find(self, spec: StreamSpec) -> Position | None:
        """Goes on with the batches that a former daemon has left for the stream, and removes those of another. Returns
        the first position that is there, or None."""
        files = self._rings.files[spec.directory]
        described = files.described()
        try:
            there = files.sizes()
        except OSError as error:
            log.warning("batches not looked at", extra={"fields": {"stream": spec.name, "why": why(error)}})
            return None
        if described is not None and described.get("fingerprint") == spec.fingerprint:
            kept = {position: size for position, size in there.items() if files.is_of(position, spec.fingerprint)}
        else:
            kept = {}
        removed = files.sweep(set(kept))
        place_bytes = described.get("place_bytes") if described is not None else None
        if removed:
            log.info("batches removed", extra={"fields": {"stream": spec.name, "files": removed}})
        if not kept or not isinstance(place_bytes, int) or place_bytes <= 0:
            files.sweep(set())
            return None
        resources = StreamResources(spec)
        try:
            ring = self._rings.create_file_ring(resources, max(kept.values()), place_bytes)
        except PrefetchdError as error:
            log.warning("batches not taken over", extra={"fields": {"stream": spec.name, "why": str(error)}})
            files.sweep(set())
            return None
        records = _fill_records(ring, kept)
        # The ring may have fewer slots than there are files: those that got none would be nobody's.
        files.sweep(ring.kept())
        found = FoundRing(
            ring.header.created_ns,
            ring.header.slots,
            ring.wanted_slots,
            ring.header.slot_bytes,
            b"",
            False,
            tuple(ring.slot_records()),
            ring.offers.words(ring.reserved_slots),
            bounds=resources.bounds,
        )
        stream = self._engine.adopt(spec, found, time.monotonic())
        if stream is None:
            resources.close()
            return None
        self._rings.resources[stream.number] = resources
        return min(records, default=None)

    def look(self, now_s: float) -> None:
        """Looks after the directories, now and then: whether they are what they were, and all files are there."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        for directory, files in self._rings.files.items():
            fault = files.fault() or _in_the_way(files)
            if fault and fault != self.faults.get(directory):
                log.error("batches cannot be stored", extra={"fields": {"why": fault}})
            self.faults[directory] = fault
            if not fault:
                files.mend()
        for stream in self._engine.streams.values():
            # Before its first batch is made there is no ring, and yet somebody may wait for what cannot be made.
            waits = self._rings.files.get(stream.spec.directory) if stream.window.ring is None else None
            if waits is not None and stream.spec.store == FILES and not self.faults.get(stream.spec.directory):
                waits.tell_errors(_errors(stream))
        for number, resources in self._rings.resources.items():
            ring, directory = resources.ring, resources.spec.directory
            if isinstance(ring, FileRing) and not self.faults.get(directory):
                try:
                    self._look_at_batches(number, ring)
                except OSError as error:
                    self.faults[directory] = f"{directory}: {why(error)}"

    def _look_at_batches(self, number: int, ring: FileRing) -> None:
        for position in ring.leftover():
            ring.files.vanish(position)
        self._tell_errors(number, ring)
        for slot, generation in ring.missing():
            self._engine.batch_missing(number, slot, generation)

    def _tell_errors(self, number: int, ring: FileRing) -> None:
        stream = self._engine.streams.get(number)
        if stream is not None:
            ring.files.tell_errors(_errors(stream))

    def fault_of(self, spec: StreamSpec) -> str:
        return self.faults.get(spec.directory, "") if spec.store == FILES else ""

    def close(self) -> None:
        """Gives up all directories; files stay for the next daemon, and for whoever reads them."""
        for directory in list(self._rings.files):
            self.give_up(directory, remove=False)


def _in_the_way(files: BatchFiles) -> str:
    try:
        return files.in_the_way()
    except OSError as error:
        return f"{files.directory}: {why(error)}"


def _errors(stream: StreamState) -> dict[Position, str]:
    """Returns why batches cannot be made, by their positions."""
    failed = [each for each in stream.window.batches.values() if each.error]
    return {each.position: f"{summarize_exception(each.error or b'')}\n" for each in failed}


def _fill_records(ring: FileRing, kept: dict[Position, int]) -> set[Position]:
    """Writes records of the batches that are there, as far as there are slots, the earliest first. Returns their
    positions."""
    ring.reserve_step()
    slot, generation = 0, 1
    recorded = set()
    for position, size in kept.items():
        span = -(-size // ring.header.slot_bytes)
        if slot + span > ring.reserved_slots:
            break
        for further in range(span - 1, 0, -1):
            following = slot + further + 1 if further < span - 1 else -1
            record = SlotRecord(SLOT_CONTINUED, 1, generation, *position, next_slot=following)
            ring.take_over(slot + further, record)
        after = slot + 1 if span > 1 else -1
        ring.take_over(slot, SlotRecord(SLOT_READY, span, generation, *position, size, next_slot=after))
        recorded.add(position)
        slot, generation = slot + span, generation + 1
    return recorded
