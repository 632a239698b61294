"""ChangeWatch finds what the user has changed between two epochs: the dataset's attributes, the sampler, the collate
function. The rules, whose reasons are in the decisions 0022 and, where this process is forked, 0090:

1. The parts are looked at when an iterator begins, and compared with what they were when that was asked last
   (`has_changed`). What a fingerprint cannot see, this cannot either.
2. An array or tensor has changed when another stands in its place, or when its content is another. Arrays of
   SMALL_BYTES or less are digested each time. The content of a larger one is looked at only if somebody may have
   written to it since this process was forked; where it was not forked, such writes are not seen
   (PrefetchLoader.refresh).
3. Of `masked` objects only their presence counts. What set_epoch() does to a sampler never counts: whether an epoch was
   planned from that is asked apart (session.sampler_state).
4. Without a fork everything is looked at each time. A large list or dict whose elements cannot change is compared with
   a copy of itself.
5. With a fork, which has the parts as they were, a glance decides first. It sees what is set to something else, and the
   kernel tells whether memory was written to. A difference is a change. No difference is none, if the glance saw all.
6. A glance does not see all when there is too much to look at, or when a large container's elements may have changed
   where they are (`_is_deep`). Then everything is looked at, and compared with the last such look or, the first time,
   with what the fork found. When the fork has found nothing within TOLD_WITHIN_S, that counts as a change: this process
   is forked again.
7. By a few of its elements, a large container only seems to be lasting. It is lasting if the fork has a digest of it.
8. Live state (fingerprint.live_state) never counts as a change: it may differ at any time. `live` names it.
9. These count as well: the working directory, the environment variables, and the size and time of change of each data
   file that the parts have open or mapped for reading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgpack

from prefetchd_client.changes.change_walks import (
    SMALL_BYTES,
    GlancingWalk,
    Known,
    Large,
    Seen,
    SeenArray,
    TooMuch,
    WatchingWalk,
    are_same,
)
from prefetchd_client.changes.written_pages import Block, WrittenPages
from prefetchd_client.fingerprint.array_digest import content_digest, memory_block
from prefetchd_client.fingerprint.live_state import FileStamp, LiveSearch
from prefetchd_client.fingerprint.module_sources import UserSource, file_digests, source_files
from prefetchd_client.fingerprint.object_paths import path_to
from prefetchd_client.fingerprint.walk import Plain, Walk
from prefetchd_client.quiet import quiet
from prefetchd_client.session.sampler_state import SamplerState

_MOST_NAMED = 8
"""Objects of live state that are named in messages."""
TOLD_WITHIN_S = 0.1
"""Seconds to wait for what a fork finds (rule 6)."""
CONTENT_WITHIN_S = 1.0
"""Seconds to wait for what a fork finds arrays to hold (rule 2). Without it the stream is replaced, although most such
writes are to other memory on an array's first or last page."""


class ChangeWatch:
    """Remembers `parts`, and tells whether they have changed since, by the rules 1 to 7. Where this process is forked,
    what takes long is left to the fork. `masked` are the objects of rule 3, and `sampler_state` hides what set_epoch()
    does to a sampler."""

    def __init__(
        self,
        parts: Mapping[str, object],
        masked: Iterable[object] = (),
        sampler_state: SamplerState | None = None,
        elsewhere: Callable[[float], bytes | None] | None = None,
        former: ChangeWatch | None = None,
        *,
        with_surroundings: bool = True,
    ) -> None:
        """Takes the parts, which begin() looks at. `elsewhere` is given where a fork of this process looks at the same
        parts as they are now: it returns what the fork's found() returned, or None when that has not come within so
        many seconds. What is known of large containers is taken over from the `former` watch, if they are as they were
        when that looked last. The working directory and the environment count `with_surroundings`."""
        self._parts = parts
        self._with_surroundings = with_surroundings
        self._masked = frozenset(map(id, masked))
        self._sampler_state = sampler_state
        self._large: Large = {}
        self.plain: Plain = {}
        self._files: tuple[frozenset[UserSource], list[str]] = (frozenset(), [])
        self._elsewhere = elsewhere
        self._pages: WrittenPages | None = None
        # Of large arrays whose content was looked at: its digest, by the id.
        self._contents: dict[int, bytes] = {}
        self._glanced: Seen | None = None
        self._seen: Seen | None = None
        self._is_deep = False
        self._has_result = False
        self._live_in_fork: tuple[str, ...] | None = None
        if former is not None:
            self._take_over(former)

    def begin(self) -> None:
        """Looks at the parts as they are now, in the moment of handing them over; may be called a little later, before
        anybody can change them."""
        if self._elsewhere is None:
            self._seen = self._look()
        else:
            self._glanced = self._glance()

    @property
    def needs_telling(self) -> bool:
        """True when rule 6 applies: what the fork finds is needed soon."""
        return self._elsewhere is not None and (self._glanced is None or self._is_deep)

    @property
    def live(self) -> tuple[str, ...] | None:
        """The live state that the latest look has found, each as "dataset.epoch is a shared value". None while only the
        fork knows, which has not answered yet."""
        if self._glanced is not None and not self._is_deep:
            return self._glanced.live
        if self._seen is not None:
            return self._seen.live
        if not self._has_result:
            self._from_fork()
        return self._live_in_fork

    @property
    def stamps(self) -> dict[str | int, FileStamp]:
        """The data files that the latest look has found open or mapped for reading, as they were then."""
        if self._glanced is not None and not self._is_deep:
            return self._glanced.stamps
        if self._seen is not None:
            return self._seen.stamps
        told = self._from_fork()
        return {file: FileStamp(*stamp) for file, *stamp in told[3]} if told is not None else {}

    def forked(self) -> None:
        """Notes that this process was forked just now, and that the fork has the parts as they are."""
        self._pages = WrittenPages(self._blocks)

    def found(self) -> bytes:
        """Returns what a fork of another process finds the parts to be, for that process's `elsewhere`."""
        seen = self._look()
        contents = [content_digest(each.reference()) or b"" for each in seen.arrays]
        large = {number: each.digest for number, each in self._large.items() if each.is_lasting}
        plain = {number: digest for number, (_, digest) in self.plain.items() if number in large}
        return bytes(msgpack.packb([seen.as_compared(), contents, large, plain, seen.live]))

    def is_seen_to_have_changed(self) -> bool:
        """Returns True when a glance shows a change since has_changed() was asked last. Changes nothing: has_changed()
        will compare with the same state."""
        before, after = self._glanced, self._glance()
        return before is not None and after is not None and not are_same(before, after)

    def has_changed(self) -> bool:
        """Returns True when the parts have changed since this was asked last. Takes time in proportion to what the
        parts hold, large arrays and lists left aside."""
        if self._elsewhere is not None:
            if not self._has_result:
                self._from_fork()
            before, after = self._glanced, self._glance()
            self._glanced = after
            if before is not None and after is not None:
                if not are_same(before, after) or self._are_written(after):
                    return True
                if not self._is_deep:
                    return False
        return self._has_changed_deeply()

    def _has_changed_deeply(self) -> bool:
        told = self._from_fork(TOLD_WITHIN_S) if self._seen is None else None
        if self._seen is None and told is None:
            # As long as nobody can tell, they may be others (rule 6).
            return True
        before, after = self._seen, self._look()
        self._seen = after
        if before is None:
            return told != after.as_compared() or self._are_written(after)
        if before.files != after.files:
            # They may import others now.
            self._files = (self._files[0], source_files(self._files[0]))
            self._seen = dataclasses.replace(after, files=file_digests(self._files[1]))
        return not are_same(before, after) or self._are_written(after)

    # --- what large arrays and lists hold ---

    def _blocks(self) -> Iterator[Block]:
        for seen in (self._glanced, self._seen):
            for each in seen.arrays if seen is not None else ():
                block = memory_block(each.reference())
                if block is not None and block[1] > SMALL_BYTES:
                    yield block
        yield from (each.elements.own for each in self._large.values() if each.elements is not None)

    def _from_fork(self, within_s: float = 0.0) -> Any:
        """Returns what the fork found, or None as long as it has found nothing. The digests of arrays' contents are
        kept here, and not a part of that."""
        told = self._elsewhere(within_s) if self._elsewhere is not None else None
        if told is None:
            return None
        seen, contents, large, plain, live = msgpack.unpackb(told, strict_map_key=False)
        self._live_in_fork = tuple(live)
        self._contents = dict(zip(seen[1], contents)) | self._contents
        if not self._has_result:
            self._has_result = True
            for number, known in self._large.items():
                known.digest = known.digest or large.get(number, b"")
                # Rule 7.
                known.is_lasting = known.is_lasting and bool(known.digest)
                if number in plain:
                    self.plain.setdefault(number, (known.value, plain[number]))
        return seen

    def _take_over(self, former: ChangeWatch) -> None:
        former._from_fork()
        self._large = {number: each for number, each in former._large.items() if former._is_untouched(each)}
        self.plain = {number: each for number, each in former.plain.items() if number in self._large}

    def _is_untouched(self, known: Known) -> bool:
        """Returns True when the container has the elements that it had when it was remembered. Looks at none of
        them."""
        if known.elements is None:
            return known.is_lasting
        # A fork has what this process had.
        is_written = self._pages.may_be_written if self._pages is not None else lambda _: False
        return not known.elements.may_be_others(known.value, is_written)

    def _are_written(self, seen: Seen) -> bool:
        # All are looked at: what they are now is what the next look compares with.
        return sum(self._is_written(each.reference()) for each in seen.arrays if not each.content) > 0

    def _is_written(self, array: Any) -> bool:
        block = memory_block(array)
        if block is None or self._pages is None or not self._pages.may_be_written(block):
            return False
        if id(array) not in self._contents:
            self._from_fork(CONTENT_WITHIN_S)
        known, now = self._contents.get(id(array)), content_digest(array) or b""
        self._contents[id(array)] = now
        return now != known

    # --- all else ---

    def _glance(self) -> Seen | None:
        """Returns what a glance shows, or None when there is too much to look at."""
        large: Large = {}
        walks: list[GlancingWalk] = []

        def walk(arrays: list[SeenArray], sources: set[UserSource]) -> Walk:
            walks.append(GlancingWalk(self._masked, self._large, large, arrays, sources, self._is_untouched))
            return walks[-1]

        try:
            seen = self._walked(walk)
        except TooMuch:
            return None
        self._is_deep = any(each.is_deep for each in walks)
        self._large = large
        return seen

    def _look(self) -> Seen:
        large: Large = {}
        keeps = self._elsewhere is None
        seen = self._walked(
            lambda arrays, sources: WatchingWalk(
                self._masked, self._large, large, arrays, sources, self._is_untouched, keeps=keeps
            )
        )
        self._large = large if keeps else self._large | large
        return seen

    def _walked(self, walk: Callable[[list[SeenArray], set[UserSource]], Walk]) -> Seen:
        arrays: list[SeenArray] = []
        sources: set[UserSource] = set()
        live = LiveSearch()
        at_epoch_zero = (
            self._sampler_state.at_epoch_zero() if self._sampler_state is not None else contextlib.nullcontext()
        )
        with quiet(), at_epoch_zero:
            digests: dict[str, str] = {}
            for name, value in self._parts.items():
                walked = walk(arrays, sources)
                walked.live = live
                digests[name] = walked.digest(value)
            if sources != self._files[0]:
                self._files = (frozenset(sources), source_files(sources))
        surroundings = _surroundings() if self._with_surroundings else ()
        names = tuple(f"{path_to(self._parts, value)} is {what}" for value, what in live.found[:_MOST_NAMED])
        return Seen(digests, arrays, file_digests(self._files[1]), names, live.files, surroundings)


def _surroundings() -> tuple[object, ...]:
    """Return the working directory and the environment, as a fork of this process would have them."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = ""
    return directory, dict(os.environb)
