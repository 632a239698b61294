"""Closes what a daemon has, in the one order in which nothing is lost: all, or all but what the next one adopts."""

from __future__ import annotations

import contextlib

from prefetchd.daemon.declared.declared_streams import DeclaredStreams
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.segments.recovery import reclaim_programs
from prefetchd.daemon.segments.status_segment import StatusSegment
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.leavers import Leavers
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.supervisor.bridges import Bridges
from prefetchd.supervisor.process_backend import ProcessBackend
from prefetchd.wire.runtime_paths import RuntimePaths


class Closing:
    """Closes the parts of one daemon, once, after its loop has ended: by drop() or by keep(). `has_left_rings`: keep()
    has left some for the next daemon."""

    def __init__(
        self,
        paths: RuntimePaths,
        status: StatusSegment,
        rings: StreamRings,
        leavers: Leavers,
        backend: ProcessBackend,
        bridges: Bridges,
        declared: DeclaredStreams,
        publishing: Publishing,
    ) -> None:
        self.has_left_rings = False
        self._paths = paths
        self._status = status
        self._rings = rings
        self._leavers = leavers
        self._backend = backend
        self._bridges = bridges
        self._declared = declared
        self._publishing = publishing

    def drop(self) -> None:
        """Closes everything; nothing is left behind."""
        with contextlib.ExitStack() as ending:
            # Called in reverse order; each one happens whatever becomes of those before it.
            ending.callback(self._status.close)
            ending.callback(reclaim_programs, self._paths)
            for resources in self._rings.resources.values():
                ending.callback(resources.close)
            ending.callback(self._leavers.close)
            ending.callback(self._backend.close)
            ending.callback(self._bridges.close)
            ending.callback(self._declared.close)
            self._close_connections_with(ending)

    def keep(self) -> None:
        """Closes everything, and leaves rings, their programs and trainers' forks as a kill would. Connections end
        last: a trainer that sees their end finds rings that can be adopted. What nobody would adopt is dropped."""
        with contextlib.ExitStack() as ending:
            self._close_connections_with(ending)
            ending.callback(self._status.close)
            ending.callback(kill_point, "daemon.keep.released")
            for resources in self._rings.resources.values():
                is_adopted = resources.ring is not None and resources.spec.store != FILES
                self.has_left_rings = self.has_left_rings or is_adopted
                ending.callback(resources.leave if is_adopted else resources.close)
            ending.callback(kill_point, "daemon.keep.childless")
            ending.callback(self._leavers.close)
            ending.callback(self._backend.close, leave_forks=True)
            ending.callback(self._bridges.close)
            ending.callback(self._declared.close)

    def _close_connections_with(self, ending: contextlib.ExitStack) -> None:
        listener = self._publishing.listener
        if listener is not None:
            for session in list(listener.sessions.values()):
                ending.callback(session.close)
            ending.callback(listener.close)
