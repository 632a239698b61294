"""Decides which of the streams that are there a trainer may have: by its name, and by what it is of. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import Hello
from prefetchd.wire.stream_spec import StreamSpec

_DEFAULT_NAME = re.compile("(.+):[0-9]+((?:@[0-9]+)?)")
"""The name of a stream that nobody named: script, ordinal of its loader, rank."""

_BESIDE = re.compile("(#[0-9]+)+$")
"""What the daemon has added to a name that was taken. A trainer that comes back asks with it."""


def attached(by_name: Mapping[str, StreamState], hello: Hello) -> StreamState:
    """Returns the stream that is asked for by its name alone. Raises CallerError."""
    found = by_name.get(hello.stream)
    if found is not None and (found.offering.shareable or found.awaits(hello)):
        return found
    shared = ", ".join(sorted(repr(name) for name, each in by_name.items() if each.offering.shareable)) or "none"
    raise CallerError(f"no stream {hello.stream!r} to attach to; there are: {shared}. Declare it in the configuration")


def is_taken(found: StreamState, hello: Hello) -> bool:
    """True when the asking trainer cannot have that stream's name: a process consumes it that shares it with nobody; or
    the stream may be what is asked for, and is not given up before that is known; or another process has closed its
    loader and lives on, and may make it again. A process that makes its loaders anew gives up what it has left
    behind."""
    if found.in_use:
        return not (hello.shared and found.offering.shareable)
    if found.left_by == hello.pid:
        return False
    return found.leaver_lives or (not hello.fingerprint and not hello.fresh)


def beside(by_name: Mapping[str, StreamState], name: str, is_free: Callable[[StreamState], bool]) -> str:
    """Returns the first name beside `name`, which is taken, that no stream has, or one that `is_free`."""
    first = _BESIDE.sub("", name)
    suffixed = (f"{first}#{number}" for number in itertools.count(2))
    return next(each for each in suffixed if each not in by_name or is_free(by_name[each]))


def related(by_name: Mapping[str, StreamState], name: str) -> list[str]:
    """Returns the names of streams that may be what a loader without `stream=` asks for: this name, or another one that
    a loader of the same script may have got, on the same rank. This one comes first, then what stands beside it."""
    asked = _BESIDE.sub("", name)
    default = _DEFAULT_NAME.fullmatch(asked)
    base = f"{re.escape(default[1])}:[0-9]+{re.escape(default[2])}" if default is not None else re.escape(asked)
    pattern = re.compile(f"{base}(#[0-9]+)?")
    names = [each for each in by_name if pattern.fullmatch(each)]
    return sorted(names, key=lambda each: (each != name, each.split("#")[0] != asked, len(each), each))


def left_by_another(by_name: Mapping[str, StreamState], spec: StreamSpec) -> StreamState | None:
    """Returns a stream that nobody consumes and that can serve a loader without `stream=`; None when there is none.
    Which of a script's loaders, or of the processes that run it, comes first may differ from run to run."""
    for name in related(by_name, spec.name):
        stream = by_name[name]
        if not stream.in_use and not difference(stream, spec):
            return stream
    return None


def difference(stream: StreamState, spec: StreamSpec) -> str:
    """Says why `stream` cannot serve a trainer that asks for `spec`; empty when it can."""
    if stream.failure is not None:
        return "it has failed"
    if not (stream.spec.is_identified and spec.is_identified):
        return "not known what it is of"
    for name, told in (
        ("fingerprint", "another fingerprint"),
        ("buffer_bytes", "another buffer="),
        ("buffer_batches", "another buffer="),
        ("minimum_slots", "another device="),
        ("store", "another store"),
        ("directory", "another directory of its store"),
    ):
        if getattr(stream.spec, name) != getattr(spec, name):
            return told
    return ""
