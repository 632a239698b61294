"""fingerprint(parts) returns a digest of everything that decides a stream's batches.

The same program has the same fingerprint in every process, whatever PYTHONHASHSEED, working directory or place of the
script. A change has another: in code that is reached, in arguments, in data that the objects hold, in the versions of
packages and in the sources of the user's own modules. Pickle bytes would not do: they differ between identical runs for
anything of __main__, for lambdas and for sets.

What it cannot see
  data files, and anything else that is read while a batch is made: the environment, a database, the network;
  the content of a mapped file, of which name, size and time of change count;
  code of installed packages that was patched in place, or edited without a new version;
  modules imported, and globals looked up, by a computed name; docstrings and annotations;
  the state of an object that does not let itself be pickled (open files, locks, sockets), of which the type counts.
What it sees though it need not matter
  caches that an object fills while it is used, unless its __getstate__ drops them;
  a time, a process id or an output directory in a global or an attribute that the code names;
  a list made of a set of strings without sorting it: its order is another in every process.

It runs __reduce_ex__, __getstate__ and what else pickle would run, and nothing else of the user.
"""

from __future__ import annotations

import itertools
import marshal
import pathlib
import platform
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np
import torch
import xxhash

from prefetchd_client.fingerprint.code_digest import MARSHAL_VERSION
from prefetchd_client.fingerprint.live_state import Check, LiveSearch, check_for
from prefetchd_client.fingerprint.object_parts import Rule, rule_for
from prefetchd_client.quiet import quiet

ENVIRONMENT = "<environment>"
"""The name in describe() for the versions of Python, torch and numpy, which count for every stream."""

# XXH3 reads memory at more than 20 GB/s, a cryptographic digest at 1 GB/s or less. It need not resist an attacker,
# who would be the user himself; by accident two of 128 bits do not meet.
Digest: TypeAlias = xxhash.xxh3_128

_ATOMS = frozenset([int, float, complex, str, bytes, bool, type(None), type(...)])
_ATOM_IDS = frozenset(map(id, _ATOMS))
_CONTAINERS = frozenset([list, tuple, dict])
_PATH_ID = frozenset([id(pathlib.PosixPath)])

_PLAIN_DEPTH = 8
_PLAIN_WIDTH = 1 << 20
_CHUNK = 4096
_REMEMBERED_LENGTH = 1024


_STANDS_FOR = "__prefetchd_stands_for__"
"""The attribute of functions of ours that are in another one's place in workers' processes, as
prefetchd.workers.state_readers writes it."""

Plain: TypeAlias = dict[int, tuple[object, bytes]]
"""Large plain data by id: the container, which is thereby kept alive, and the digest of what it holds."""


def fingerprint(
    parts: Mapping[str, object],
    masked: Iterable[object] = (),
    plain: Plain | None = None,
    walks: Callable[[Plain, frozenset[int]], Walk] | None = None,
    live: LiveSearch | None = None,
) -> str:
    """Returns 32 hexadecimal digits for the named parts, whatever their order; of `masked` objects only their presence
    counts. Blocks while it reads all they hold, but for what is in `plain`, which is added to. `walks` makes walks of
    another kind, such as one that gives up (quick_walk). With a `live` search, live state counts by its type alone."""
    content = Digest()
    for name, digest in sorted(describe(parts, masked, plain, walks, live).items()):
        content.update(f"{len(name)}:{name}{digest}".encode())
    return content.hexdigest()


def describe(
    parts: Mapping[str, object],
    masked: Iterable[object] = (),
    plain: Plain | None = None,
    walks: Callable[[Plain, frozenset[int]], Walk] | None = None,
    live: LiveSearch | None = None,
) -> dict[str, str]:
    """Returns the digest of each part, and of ENVIRONMENT: which of them changed when the fingerprint did."""
    environment = (platform.python_version_tuple()[:2], str(torch.__version__), np.__version__)
    plain = {} if plain is None else plain
    # Some objects warn when they are taken apart; pickling will warn again.
    with quiet():
        hidden = frozenset(map(id, masked))
        digests: dict[str, str] = {}
        for name, value in parts.items():
            walk = (walks or Walk)(plain, hidden)
            walk.live = live
            digests[name] = walk.digest(value)
        return {**digests, ENVIRONMENT: Walk(plain).digest(environment)}


class _SetFrame:
    """Marks a set being digested: each element is digested apart, so that their order does not matter."""

    __slots__ = ("digests", "mark", "missing", "outer")

    def __init__(self, outer: Digest, mark: int, missing: int) -> None:
        self.outer, self.mark, self.missing = outer, mark, missing
        self.digests: list[bytes] = []


class Walk:
    """Walks over one part, with a stack of its own: nesting may be as deep as memory allows.

    An object that was met before stands for itself by the number of its first visit, so cycles end. Plain data
    (numbers, strings, and lists, tuples and dicts of them) always counts by value: whether two equal strings are one
    object depends on interning. `plain` remembers large plain data over the walks, and keeps it alive.

    With a `live` search, objects that are live state count by their type: what they hold is another thing at any time.
    """

    live: LiveSearch | None = None

    def __init__(self, plain: Plain, masked: frozenset[int] = frozenset()) -> None:
        self._masked = masked
        self.content = Digest()
        self.stack: list[object] = []
        self._numbers: dict[int, int] = {}
        # Also keeps the visited alive, temporary ones too: their ids must not be given to others.
        self._visited: list[object] = []
        self._plain_digests = plain
        self._rules: dict[int, tuple[type, Rule, Check | None]] = {}

    def digest(self, value: object) -> str:
        stack = self.stack
        stack.append(value)
        while stack:
            value = stack.pop()
            kind = type(value)
            # By identity of the type alone: isinstance would ask the object for its __class__.
            if id(kind) in _ATOM_IDS:
                self.content.update(b"=" + _marshalled(value))
            elif kind is list or kind is tuple or kind is dict:
                self.take_container(cast("list[object]", value), kind)
            elif kind is set or kind is frozenset:
                self._set(cast("set[object]", value), kind)
            elif kind is _SetFrame:
                self._end_element(cast(_SetFrame, value))
            else:
                self.take_object(value, kind)
        return self.content.hexdigest()

    def take_container(self, value: Sequence[object] | dict[object, object], kind: type) -> None:
        known = self._plain_digests.get(id(value))
        if known is not None:
            length = len(value) * (2 if kind is dict else 1)
            self.content.update(b"plain %b:%d;" % (kind.__name__.encode(), length) + known[1])
            return
        rows: Sequence[object] = [*value, *value.values()] if isinstance(value, dict) else value
        if is_plain(rows):
            self.content.update(b"plain %b:%d;" % (kind.__name__.encode(), len(rows)))
            self.content.update(self._plain_bytes(value, rows))
        elif not self.is_known(value):
            if _PATH_ID.issuperset(map(id, map(type, rows))):
                self.content.update(b"paths ")
                rows = list(map(str, rows))
            self.content.update(b"%b:%d;" % (kind.__name__.encode(), len(rows)))
            self.stack.extend(reversed(rows))

    def _plain_bytes(self, value: object, rows: Sequence[object]) -> bytes:
        if len(rows) < _REMEMBERED_LENGTH:
            return _marshalled(rows)
        content = Digest()
        for chunk in _chunks(rows):
            content.update(_marshalled(chunk))
        digest = content.digest()
        self._plain_digests[id(value)] = (value, digest)
        return digest

    def _set(self, value: Collection[object], kind: type) -> None:
        elements = list(value)
        header = b"%b:%d;" % (kind.__name__.encode(), len(elements))
        if is_plain(elements):
            self.content.update(b"plain " + header)
            self.content.update(b"".join(sorted(map(_marshalled, elements))))
        elif not self.is_known(value):
            self.content.update(header)
            frame = _SetFrame(self.content, len(self._visited), len(elements))
            for element in elements:
                self.stack += (frame, element)
            self.content = Digest()

    def _end_element(self, frame: _SetFrame) -> None:
        frame.digests.append(self.content.digest())
        # What one element has met is new to the next: else the number of a visit would tell their order.
        while len(self._visited) > frame.mark:
            del self._numbers[id(self._visited.pop())]
        frame.missing -= 1
        if frame.missing:
            self.content = Digest()
        else:
            self.content = frame.outer
            self.content.update(b"".join(sorted(frame.digests)))

    def take_object(self, value: object, kind: type) -> None:
        if kind is types.FunctionType and (original := vars(value).get(_STANDS_FOR)) is not None:
            value, kind = original, type(original)
        known = self._rules.get(id(kind))
        if known is None:
            known = self._rules[id(kind)] = (kind, rule_for(kind), check_for(kind))
        _, rule, check = known
        if id(value) in self._masked:
            if not self.is_known(value):
                self.content.update(b"masked;")
        elif check is not None and self.live is not None and self.live.is_live(check, value):
            self.content.update(f"live {kind.__module__}.{kind.__qualname__};".encode())
        elif rule.is_leaf or not self.is_known(value):
            tag, values = rule.parts(value)
            self.content.update(f"{tag}:{len(values)};".encode())
            self.stack.extend(reversed(values))

    def is_known(self, value: object) -> bool:
        number = self._numbers.setdefault(id(value), len(self._visited))
        if number < len(self._visited):
            self.content.update(b"@%d;" % number)
            return True
        self._visited.append(value)
        return False


def _marshalled(value: object) -> bytes:
    return marshal.dumps(value, MARSHAL_VERSION)  # type: ignore[arg-type]


def _chunks(rows: Sequence[object]) -> Iterator[Sequence[object]]:
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))


def is_plain(rows: Sequence[object]) -> bool:
    """Returns True when all in `rows` is plain data of moderate depth and width. Depends on values alone, never on
    which of them are one object: so does the way that they are digested."""
    try:
        return _is_plain_chunk(rows) if len(rows) <= _CHUNK else all(map(_is_plain_chunk, _chunks(rows)))
    except TypeError:
        # A class that cannot be hashed.
        return False


def _is_plain_chunk(level: Sequence[object]) -> bool:
    for _ in range(_PLAIN_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _ATOMS:
            return True
        if not kinds <= _ATOMS | _CONTAINERS:
            return False
        if not kinds.isdisjoint(_ATOMS):
            level = [value for value in level if type(value) in _CONTAINERS]
        nested = cast("Sequence[Collection[object]]", level)
        lengths = list(map(len, nested))
        # A long one inside has a digest of its own, which may be known.
        if sum(lengths) > _PLAIN_WIDTH or max(lengths) >= _REMEMBERED_LENGTH:
            return False
        deeper = list(itertools.chain.from_iterable(nested))
        if dict in kinds:
            for value in nested:
                if isinstance(value, dict):
                    deeper += value.values()
        level = deeper
    return False
