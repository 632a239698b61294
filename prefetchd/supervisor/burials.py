"""Kills child processes that nobody needs any more, and gives up what they had once they are dead. A process with much
memory may take long to end: nobody waits for that but wait()."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prefetchd.processes.descendants import end_session, end_tree
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.child_process import ChildProcess


class Burials:
    """Holds the children that were killed and are not dead yet."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._dying: dict[ChildProcess, Callable[[], object]] = {}

    @property
    def are_under_way(self) -> bool:
        """True while some are not dead: their memory is not free yet."""
        return bool(self._dying)

    def bury(self, child: ChildProcess | None, afterwards: Callable[[], object] = lambda: None) -> None:
        """Kills the child, and calls afterwards() when it is dead. Does not wait for that."""
        if child is None:
            return

        def is_dead() -> None:
            if self._dying.pop(child, None) is not None:
                afterwards()

        child.kill()
        self._dying[child] = afterwards
        child.forsake(is_dead)

    def bury_fork(self, child: ChildProcess | None) -> None:
        """Buries a zygote that is a trainer's fork, as bury() does, with its session: the orphans of such a zygote are
        not given to us."""
        if child is not None:
            end_tree(child.pid)
            self.bury(child, partial(end_session, child.pid))

    def wait(self, within_s: float) -> None:
        """Waits until all are dead, together `within_s` at most, and forgets them."""
        deadline_s = self._watcher.now_s() + within_s
        for child, afterwards in list(self._dying.items()):
            child.is_dead(deadline_s - self._watcher.now_s())
            child.close()
            afterwards()
        self._dying.clear()
