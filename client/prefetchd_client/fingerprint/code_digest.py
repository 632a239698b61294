"""code_digest digests what a code object does: the same bytes for the same source wherever it stands, on whatever line.

Filenames, line numbers and the docstring of a function do not count; names of arguments and local variables do. Pure:
nothing here looks anything up.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import marshal
import types
from typing import TypeAlias

import xxhash

Path: TypeAlias = tuple[str, ...]
"""A global name and the attributes that the code takes of it: `np.random.rand` is ("np", "random", "rand")."""

Import: TypeAlias = tuple[int, str, tuple[str, ...]]
"""An import statement: (level of the relative import, module, names after `import`)."""

MARSHAL_VERSION = 2
"""The newest marshal format without references and interning flags: equal values give equal bytes."""

_HAS_DOCSTRING = 0x4000000
_IGNORED_FLAGS = _HAS_DOCSTRING
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_CONSTANT_OPCODES = frozenset(dis.hasconst)
_GLOBAL_OPS = frozenset(["LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"])
_ENVIRONMENT = frozenset(["environ", "environb", "getenv"])
_ATTRIBUTE_OPS = frozenset(["LOAD_ATTR", "LOAD_METHOD"])


@dataclasses.dataclass(frozen=True)
class Names:
    """Lists what a code object and those nested in it reach for at run time, sorted."""

    globals: tuple[Path, ...]
    imports: tuple[Import, ...]
    variables: tuple[str, ...] = ()
    """Texts in code that looks up environment variables: the names of those that it may read."""


@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> bytes:
    """Returns 16 bytes that differ when `code` would do something else with the same globals, defaults and closure."""
    content = xxhash.xxh3_128()
    # co_code is the code as compiled: the interpreter's own rewriting of hot code is undone in it.
    content.update(code.co_code)
    content.update(getattr(code, "co_exceptiontable", b""))
    shape = (
        code.co_name,
        code.co_flags & ~_IGNORED_FLAGS,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        len(code.co_code),
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
    )
    content.update(marshal.dumps(shape, MARSHAL_VERSION))
    constants = code.co_consts
    if _begins_with_docstring(code):
        constants = (None, *constants[1:])
    content.update(_constant_bytes(constants))
    return content.digest()


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """Returns the globals and imports of `code` and of all code nested in it."""
    paths: set[Path] = set()
    imports: set[Import] = set()
    instructions = _instructions(code)
    for at, instruction in enumerate(instructions):
        if instruction.opname in _GLOBAL_OPS:
            end = at + 1
            while end < len(instructions) and instructions[end].opname in _ATTRIBUTE_OPS:
                end += 1
            paths.add(tuple(str(step.argval) for step in instructions[at:end]))
        elif instruction.opcode == _IMPORT_NAME:
            imports.add(_import_at(instructions, at))
    # The body of a nested class reads it for __module__.
    paths.discard(("__name__",))
    reads = any(_ENVIRONMENT.intersection(path) for path in paths)
    variables = {each for each in code.co_consts if reads and isinstance(each, str) and each.isidentifier()}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            nested = names_in(constant)
            paths.update(nested.globals)
            imports.update(nested.imports)
            variables.update(nested.variables)
    return Names(tuple(sorted(paths)), tuple(sorted(imports)), tuple(sorted(variables)))


def imports_in(code: types.CodeType) -> tuple[Import, ...]:
    """Returns the imports of `code` and of all code nested in it, as names_in() does, in a fourth of its time."""
    return tuple(sorted(_imports_in(code)))


def _imports_in(code: types.CodeType) -> set[Import]:
    imports: set[Import] = set()
    # Few code objects import anything: most need not be taken apart.
    if _IMPORT_NAME in code.co_code[::2]:
        instructions = _instructions(code)
        imports.update(
            _import_at(instructions, at) for at, each in enumerate(instructions) if each.opcode == _IMPORT_NAME
        )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            imports |= _imports_in(constant)
    return imports


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]


def _import_at(instructions: list[dis.Instruction], at: int) -> Import:
    # The two values before it are the level and the names, always constants.
    level, names = instructions[at - 2].argval, instructions[at - 1].argval
    return level if isinstance(level, int) else 0, str(instructions[at].argval), names or ()


def _begins_with_docstring(code: types.CodeType) -> bool:
    """Returns True when no instruction loads the first constant, a text: other constants without a use are not kept."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return False
    operations = code.co_code
    loads = zip(operations[::2], operations[1::2])
    return not any(argument == 0 and opcode in _CONSTANT_OPCODES for opcode, argument in loads)


def _constant_bytes(constant: object) -> bytes:
    if isinstance(constant, types.CodeType):
        return b"code" + code_digest(constant)
    if isinstance(constant, tuple):
        return b"(%d;" % len(constant) + b"".join(map(_constant_bytes, constant))
    if isinstance(constant, frozenset):
        return b"{%d;" % len(constant) + b"".join(sorted(map(_constant_bytes, constant)))
    if isinstance(constant, slice):
        return b":" + _constant_bytes((constant.start, constant.stop, constant.step))
    return b"=" + marshal.dumps(constant, MARSHAL_VERSION)  # type: ignore[arg-type]
