"""How a loader's session begins: what it says it wants, and the program that it hands over."""

from __future__ import annotations

import os
import socket
from typing import Any

from prefetchd import __version__
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.messages import PROTOCOL_VERSION, Hello, Program
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd.wire.surroundings import current_environment
from prefetchd_client.attachment import Attachment
from prefetchd_client.autostart import connect_or_start
from prefetchd_client.connection import Connection
from prefetchd_client.cursors import Cursors
from prefetchd_client.program_pickle import pickle_program, write_program


class Introduction:
    """The same for each daemon that the session meets. `parts` is the program, `prepared` its pickle if there is one
    already; it is used once."""

    def __init__(
        self,
        paths: RuntimePaths,
        spec: StreamSpec,
        parts: dict[str, Any],
        prepared: tuple[bytes, list[memoryview]] | None = None,
        *,
        shared: bool,
    ) -> None:
        self._paths = paths
        self._spec = spec
        self._parts = parts
        self._shared = shared
        self._prepared = prepared

    def reach(self) -> socket.socket:
        """A connection to a daemon. Raises DaemonUnavailableError."""
        return connect_or_start(self._paths)

    def hello(self, stream: str, cursors: Cursors, attachment: Attachment | None, *, fresh: bool = False) -> Hello:
        """Says what is wanted and, to a daemon that does not know us any more, where we stand."""
        return Hello(
            PROTOCOL_VERSION,
            "trainer",
            __version__,
            os.getpid(),
            stream,
            self._spec.fingerprint,
            encode_spec(self._spec),
            self._shared,
            cursors=cursors.told(),
            held=attachment.holds() if attachment is not None else (),
            fresh=fresh,
            consumer=attachment.consumer if attachment is not None else -1,
            ring=attachment.ring.header.created_ns if attachment is not None else 0,
        )

    def hand_over(self, connection: Connection) -> None:
        """Sends the program. Raises UnpicklableError and NoSpaceError."""
        pickled, buffers = self._prepared or pickle_program(self._parts, self._spec.batch_size)
        self._prepared = None
        name, fd, program_bytes = write_program(self._paths, current_environment(), pickled, buffers)
        try:
            kill_point("client.program.unsent")
            connection.send_with_fd(Program(name, program_bytes), fd)
            kill_point("client.program.sent")
        finally:
            os.close(fd)
