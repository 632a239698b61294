"""ForkWork is what the fork of a trainer does with its program beside forking workers: it identifies it, and writes it
for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from prefetchd.wire.messages import Identified, Message, Program, TooLarge
from prefetchd.wire.program_layout import Environment
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd_client.program.program_pickle import PickleTooLargeError, pickle_program, write_program


@dataclasses.dataclass(frozen=True)
class ForkWork:
    """Identifies and writes the program, in processes of the fork's own (workers.birth.ProgramWork). `fingerprint`
    returns the program's fingerprint, and `found` what changes.ChangeWatch wants to know of it."""

    paths: RuntimePaths
    parts: dict[str, Any]
    batch_size: int
    environment: Environment
    fingerprint: Callable[[], str]
    found: Callable[[], bytes]

    def identify(self) -> Identified:
        return Identified(self.fingerprint(), self.found())

    def write(self, limit_bytes: int) -> tuple[Message, list[int]]:
        """Writes the program's segment, and returns its message with the descriptor; returns TooLarge when the program
        would take more than `limit_bytes`, unless that is 0. Raises UnpicklableError, NoSpaceError."""
        try:
            pickled, buffers = pickle_program(self.parts, self.batch_size, limit_bytes)
        except PickleTooLargeError as error:
            return TooLarge(error.pickled_bytes), []
        buffer_bytes = len(pickled) + sum(buffer.nbytes for buffer in buffers)
        if 0 < limit_bytes < buffer_bytes:
            return TooLarge(buffer_bytes), []
        name, fd, program_bytes = write_program(self.paths, self.environment, pickled, buffers)
        return Program(name, program_bytes), [fd]
