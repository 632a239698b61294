"""Keeps what hosts have in reserve: zygotes like themselves, which go on when they die. Runs in the daemon."""

from __future__ import annotations

from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.burials import Burials
from prefetchd.supervisor.child_output import silent
from prefetchd.supervisor.child_process import ChildProcess
from prefetchd.supervisor.stream_host import foreign_child
from prefetchd.wire.errors import ProtocolError


class Spares:
    """The spares of all hosts, by the number of the host that has it; a spare outlives its host."""

    def __init__(self, watcher: Watcher, burials: Burials, *, nice: int) -> None:
        self._watcher = watcher
        self._burials = burials
        self._nice = nice
        self._spares: dict[int, ChildProcess] = {}

    def came(self, host: int, pid: int, fds: list[int]) -> bool:
        """Takes the process that the host has in reserve from now on; takes `fds` over. False when it, or its host, has
        died meanwhile."""
        self.bury(host)
        try:
            spare = foreign_child(self._watcher, pid, fds, lambda *_: None, lambda _: None, silent, nice=self._nice)
        except ProtocolError:
            return False
        spare.tell(lambda *_: None, lambda _: self._ended(host, spare), silent)
        self._spares[host] = spare
        return True

    def take(self, host: int) -> ChildProcess | None:
        """Returns the host's spare, which is the caller's from then on; None when there is none."""
        return self._spares.pop(host, None)

    def bury(self, host: int) -> None:
        """Kills the host's spare, if there is one."""
        self._burials.bury_fork(self.take(host))

    def bury_all(self) -> None:
        for host in list(self._spares):
            self.bury(host)

    def _ended(self, host: int, spare: ChildProcess) -> None:
        spare.close()
        if self._spares.get(host) is spare:
            del self._spares[host]
