"""Remembers which trainers are asked for a stream's program: for the program itself, or a fork that has it. Pure."""

from __future__ import annotations


class ProgramRequests:
    """The requests of one stream. `program_from` is the session that was asked for the program, `fork_from` the one
    that is about to hand over a fork of its trainer; 0: none."""

    def __init__(self) -> None:
        self.program_from = 0
        self.fork_from = 0

    def is_asked(self, session: int) -> bool:
        """True until `session` has handed over, once, what it was asked for; a trainer that was asked for a fork and
        cannot fork sends its program instead. Others may be faster meanwhile."""
        return session in (self.program_from, self.fork_from)

    def end(self, session: int) -> None:
        """Notes that nothing more is asked of `session`."""
        if self.program_from == session:
            self.program_from = 0
        if self.fork_from == session:
            self.fork_from = 0
