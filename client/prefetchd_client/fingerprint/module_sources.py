"""This module finds out where code comes from, and what stands for it in a fingerprint.

An installed package counts by its version and those of the distributions that it requires; the standard library by
Python's version alone; one of the user's own modules by its file and the files of all the user's modules that it
imports; `__main__` not at all, since an edit of the training loop must not cost the ring: only the functions, classes
and values of it that are reached count.
"""

from __future__ import annotations

import enum
import functools
import importlib.metadata
import importlib.util
import marshal
import os
import re
import struct
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import NamedTuple, TypeAlias

import xxhash

import prefetchd
from prefetchd_client.fingerprint.code_digest import Import, imports_in
from prefetchd_client.fingerprint.target_directories import is_recorded
from prefetchd_client.quiet import quiet

Versions: TypeAlias = tuple[tuple[str, str], ...]
"""(package or distribution, version)."""

_PYC_HEADER = struct.Struct("<4sIII")
"""The magic number, flags, and the source's time in seconds and size."""

MAIN_NAMES = ("__main__", "__mp_main__")


class Origin(enum.Enum):
    """Says whose code it is. UNKNOWN: a module without a file that no installed package owns."""

    MAIN = "main"
    USER = "user"
    INSTALLED = "installed"
    UNKNOWN = "unknown"


def module_origin(module: types.ModuleType) -> Origin:
    """Returns whose module it is; by its file, whatever has been written into it."""
    name = module.__name__
    if name in MAIN_NAMES:
        return Origin.MAIN
    file = vars(module).get("__file__")
    if isinstance(file, str):
        return Origin.INSTALLED if is_installed_file(file) else Origin.USER
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or any(map(is_installed_file, _search_path(module))):
        return Origin.INSTALLED
    # Packages make modules without a file at run time: torch.ops, six.moves.
    parent = sys.modules.get(top)
    return Origin.UNKNOWN if parent is None or parent is module else module_origin(parent)


def name_origin(name: str) -> Origin:
    """Returns whose module `name` is; UNKNOWN when it is not loaded."""
    module = sys.modules.get(name)
    return module_origin(module) if module is not None else Origin.UNKNOWN


def function_origin(function: types.FunctionType) -> Origin:
    """Returns whose code `function` runs, by its code and not by the names that functools.wraps copied."""
    name = function.__globals__.get("__name__")
    file = function.__code__.co_filename
    if is_installed_file(file):
        return Origin.INSTALLED
    if isinstance(name, str) and file.startswith("<") and name_origin(name) is Origin.INSTALLED:
        return Origin.INSTALLED
    return Origin.MAIN if name in MAIN_NAMES else Origin.USER


@functools.cache
def is_installed_file(path: str) -> bool:
    """Returns True below the standard library or any site-packages, and for packages that pip has put elsewhere. So are
    our own, also where they are installed in editable mode: their version says what they make."""
    if path.startswith(_OWN):
        return True
    if path.startswith("<"):
        return path.startswith("<frozen ")
    if not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep)):
        return True
    return path.startswith(_STDLIB) or os.path.realpath(path).startswith(_STDLIB) or is_recorded(path)


def package_of(name: str) -> types.ModuleType | str:
    """Returns the top-level package of module `name`; only its name for the standard library and what is not loaded."""
    top = name.partition(".")[0]
    return top if top in sys.stdlib_module_names else sys.modules.get(top, top)


def package_versions(module: types.ModuleType) -> Versions:
    """Returns (package, version) of an installed top-level package and (distribution, version) of all that it
    requires."""
    name = module.__name__
    if name in sys.stdlib_module_names:
        return ()
    own = vars(module).get("__version__")
    return ((name, str(own) if isinstance(own, str) else _recorded_version(name)), *_required_versions(name))


class UserSource:
    """Stands for one of the user's own modules, loaded or not; it is the same object for the same name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def user_sources(names: Iterable[str]) -> tuple[UserSource, ...]:
    """Returns those of `names` that are the user's own modules, sorted."""
    own = sorted(name for name in set(names) if _user_file(name) is not None)
    return tuple(_sources.setdefault(name, UserSource(name)) for name in own)


def source_values(source: UserSource) -> Sequence[object]:
    """Returns a module's name, the digest of its file, and the user's modules that it imports."""
    file = _user_file(source.name)
    if file is None:
        return [source.name]
    read = _read(file)
    is_package = os.path.basename(file).startswith("__init__.")
    package = source.name if is_package else source.name.rpartition(".")[0]
    names = [name for statement in read.imports for name in imported_names(statement, package)]
    module = sys.modules.get(source.name)
    if module is not None:
        names += _neighbours(module)
    return [source.name, read.digest, *user_sources(name for name in names if name != source.name)]


def source_files(sources: Iterable[UserSource]) -> list[str]:
    """Returns the files of these modules, and of all the user's modules that they import, directly or not; sorted."""
    found: set[UserSource] = set()
    queue = list(sources)
    while queue:
        source = queue.pop()
        if source not in found:
            found.add(source)
            queue += [value for value in source_values(source) if isinstance(value, UserSource)]
    return sorted(file for source in found if (file := _user_file(source.name)) is not None)


def file_digests(files: Iterable[str]) -> list[str]:
    """Returns the digests of what stands in the files now. A file is read when its time or size has changed since it
    was read last."""
    return [_read(file).digest for file in files]


def imported_names(statement: Import, package: str) -> list[str]:
    """Returns the modules that an import statement in `package` may name; some of them may be no modules at all."""
    level, name, names = statement
    if level:
        above = package.split(".")[: 1 - level or None]
        name = ".".join([*above, name] if name else above)
    if names:
        return [name, *(f"{name}.{part}" for part in names if part != "*")]
    # `import a.b.c` binds `a`: whatever it holds can be reached.
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _stdlib_directories() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    places = {paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)}
    return tuple(sorted({place + os.sep for path in places for place in (path, os.path.realpath(path))}))


_STDLIB = _stdlib_directories()
_OWN = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (prefetchd.__file__, os.path.dirname(__file__)) if file
)


def _search_path(module: types.ModuleType) -> list[str]:
    path = vars(module).get("__path__")
    return [str(place) for place in path] if path is not None else []


def _user_file(name: str) -> str | None:
    if not name or name.startswith("."):
        return None
    top = sys.modules.get(name.partition(".")[0])
    if top is not None and module_origin(top) is Origin.INSTALLED:
        return None
    module = sys.modules.get(name)
    if module is not None:
        file = vars(module).get("__file__")
        return file if isinstance(file, str) and module_origin(module) is Origin.USER else None
    spec = _find_spec(name)
    if spec is None or not spec.has_location or spec.origin is None or is_installed_file(spec.origin):
        return None
    return spec.origin


def _find_spec(name: str) -> ModuleSpec | None:
    """Finds a module's spec as importlib.util.find_spec does, without importing the packages above."""
    above = name.rpartition(".")[0]
    path: list[str] | None = None
    if above:
        module = sys.modules.get(above)
        if module is not None:
            path = _search_path(module)
        else:
            parent = _find_spec(above)
            path = list(parent.submodule_search_locations or ()) if parent is not None else []
        if not path:
            return None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def _neighbours(module: types.ModuleType) -> Iterator[str]:
    """Yields the modules of the values in a module's namespace: what an import that no statement shows has brought."""
    for attribute, value in list(vars(module).items()):
        # By the type itself: isinstance would ask a lazy object what it stands for.
        if issubclass(type(value), types.ModuleType):
            # The import system sets a package's submodules on it, whoever imported them.
            if value.__name__ != f"{module.__name__}.{attribute}":
                yield value.__name__
        elif issubclass(type(value), types.FunctionType | type) and isinstance(value.__module__, str):
            yield value.__module__


class _File(NamedTuple):
    """Holds a file's digest and imports as last read."""

    stamp: tuple[int, int]
    digest: str
    imports: tuple[Import, ...]


_sources: dict[str, UserSource] = {}
_files: dict[str, _File] = {}


def _read(path: str) -> _File:
    try:
        status = os.stat(path)
        stamp = (status.st_mtime_ns, status.st_size)
        known = _files.get(path)
        if known is None or known.stamp != stamp:
            with open(path, "rb") as file:
                text = file.read()
            known = _File(stamp, xxhash.xxh3_128_hexdigest(text), _imports(path, text, stamp))
            _files[path] = known
        return known
    except OSError:
        # In a zip archive, or gone since it was imported: what is reached of it counts by its bytecode.
        return _File((0, 0), "", ())


def _imports(path: str, text: bytes, stamp: tuple[int, int]) -> tuple[Import, ...]:
    if not path.endswith(".py"):
        return ()
    code = _cached_code(path, stamp)
    try:
        with quiet():
            return imports_in(code if code is not None else compile(text, path, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return ()


def _cached_code(path: str, stamp: tuple[int, int]) -> types.CodeType | None:
    """Returns what Python has compiled the file to, if that is of the file as it is; None where it is not known.
    Compiling takes ten times as long. Source: the header of PEP 552; a file that is checked by its hash is not looked
    at."""
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            data = file.read()
        magic, flags, seconds, size = _PYC_HEADER.unpack_from(data)
        wanted = (importlib.util.MAGIC_NUMBER, 0, stamp[0] // 10**9 & 0xFFFFFFFF, stamp[1] & 0xFFFFFFFF)
        code = marshal.loads(data[_PYC_HEADER.size :]) if (magic, flags, seconds, size) == wanted else None
    except (OSError, NotImplementedError, struct.error, ValueError, EOFError, TypeError):
        return None
    return code if isinstance(code, types.CodeType) else None


@functools.cache
def _recorded_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        distributions = _distributions().get(package, ())
        return ",".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(distributions)))


@functools.cache
def _distributions() -> dict[str, list[str]]:
    # Reads every installed distribution's file list, 0.2 s: only for packages that no cheaper way names.
    return {name: list(found) for name, found in importlib.metadata.packages_distributions().items()}


@functools.cache
def _required_versions(package: str) -> Versions:
    """Returns the versions of all that a package requires: an upgraded Pillow changes what torchvision decodes, though
    no code of the user names it."""
    found: dict[str, str] = {}
    queue = [package]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        try:
            version, requirements = _metadata(importlib.metadata.distribution(name))
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
        found[name] = version
        for requirement in requirements:
            required = re.match(r"[A-Za-z0-9._-]+", requirement)
            if required is not None and "extra ==" not in requirement:
                queue.append(re.sub(r"[-_.]+", "-", required[0]).lower())
    found.pop(package, None)
    return tuple(sorted(found.items()))


def _metadata(distribution: importlib.metadata.Distribution) -> tuple[str, Sequence[str]]:
    """Returns version and requirements, as the distribution's own attributes tell them."""
    text = distribution.read_text("METADATA")
    if text is None:
        return distribution.version, distribution.requires or ()
    # importlib.metadata has the email package parse all of it, twice: forty files take a tenth of a second.
    fields: dict[str, list[str]] = {"version": [], "requires-dist": []}
    for line in text.splitlines():
        if not line:
            break
        name, _, value = line.partition(":")
        if name.lower() in fields:
            fields[name.lower()].append(value.strip())
    if not fields["version"]:
        return distribution.version, distribution.requires or ()
    return fields["version"][0], fields["requires-dist"]
