"""Makes the environment of a trainer that of a node: the same program, on a machine that has its own paths. Pure, but
that it looks which of the trainer's paths exist."""

from __future__ import annotations

import dataclasses
import os
import sys

from prefetchd.processes.environment import READ_AT_START
from prefetchd.wire.program_layout import (
    Environment,
    ProgramLayout,
    decode_environment,
    decode_program,
    encode_environment,
    encode_head,
    encode_table,
)

KEPT_OF_TRAINER = (b"PYTHONHASHSEED",)
"""What an interpreter reads at its start and is the trainer's all the same: batches may depend on it."""


def on_this_node(environment: Environment) -> Environment:
    """Returns the environment for this machine, whose interpreter this is.

    What libraries and the interpreter read at their start (PATH, LD_LIBRARY_PATH, HOME, ...) is the node's, all other
    variables are the trainer's. Of the trainer's module path what exists here comes first, in its order; what this
    process has beside that follows: an image or a runtime_env may have the same code elsewhere. The directory is the
    trainer's if it exists, else this process's, as it is with Ray's working_dir.
    """
    own = {name: value for name, value in os.environb.items() if _is_nodes(name)}
    theirs = {name: value for name, value in environment.variables.items() if not _is_nodes(name)}
    path = [entry for entry in environment.sys_path if os.path.exists(entry)]
    path += [entry for entry in map(os.path.abspath, filter(None, sys.path)) if entry not in path]
    directory = environment.directory if os.path.isdir(environment.directory) else os.getcwdb()
    if os.fsdecode(directory) != os.fsdecode(environment.directory):
        path.insert(0, os.fsdecode(directory))
    return dataclasses.replace(
        environment,
        executable=os.fsencode(sys.executable),
        sys_path=tuple(path),
        directory=directory,
        variables={**theirs, **own},
        authkey=b"",
    )


def _is_nodes(name: bytes) -> bool:
    return name.startswith((*READ_AT_START, b"RAY_")) and name not in KEPT_OF_TRAINER


def environment_of(program: memoryview) -> Environment:
    """Returns the environment in a program segment. Raises ProtocolError."""
    layout = decode_program(program)
    at = layout.environment_offset
    return decode_environment(program[at : at + layout.environment_bytes])


def program_with(environment: Environment, program: memoryview) -> int:
    """Returns a descriptor of a program segment that is `program` with another environment, in memory of this process's
    own. Raises ProtocolError, and OSError."""
    former = decode_program(program)
    encoded = encode_environment(environment)
    layout = ProgramLayout(len(encoded), former.pickle_bytes, former.buffer_sizes)
    fd = os.memfd_create("prefetchd-program", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, layout.program_bytes)
        pickled = program[former.pickle_offset : former.pickle_offset + former.pickle_bytes]
        parts: list[tuple[int, bytes | memoryview]] = [
            (0, encode_head(layout)),
            (layout.environment_offset, encoded),
            (layout.pickle_offset, pickled),
        ]
        parts.append((layout.table_offset, encode_table(layout)))
        for at, begin, size in zip(layout.buffer_offsets, former.buffer_offsets, former.buffer_sizes):
            parts.append((at, program[begin : begin + size]))
        for at, part in parts:
            _write_at(fd, at, part)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_at(fd: int, offset: int, part: bytes | memoryview) -> None:
    rest = memoryview(part)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
