"""begin_early has the daemon import what workers need while this process imports the rest, where workers are not forked
from this process.

An interpreter takes seconds to import torch and the like. It begins with `import prefetchd_client`, and is ready, or
nearly so, when the script comes to make its first loader.
"""

from __future__ import annotations

import contextlib
import os

from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.framing import receive, send
from prefetchd.wire.messages import PROTOCOL_VERSION, Hello, TrainerEnvironment
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.program_layout import encode_environment
from prefetchd.wire.runtime_paths import make_private, runtime_paths
from prefetchd_client.connection.autostart import Launch, connect
from prefetchd_client.own_version import VERSION
from prefetchd_client.start_method import EXEC, START_VARIABLE, is_inline

ANSWER_WITHIN_S = 0.5


def begin_early() -> None:
    """Sends this process's environment to the user's own daemon, and starts a daemon if none runs. Does nothing unless
    PREFETCHD_START=exec says that there will be no forks. Waits for a running daemon's answer, ANSWER_WITHIN_S at most;
    raises nothing: without it a first batch comes later, that is all."""
    if os.environ.get(START_VARIABLE, "") != EXEC or is_inline():
        return
    with contextlib.suppress(PrefetchdError, OSError):
        environment = encode_environment(current_environment())
        paths = runtime_paths(None)
        sock = connect(paths, timeout_s=0.0)
        if sock is None:
            make_private(paths.socket.parent)
            Launch(paths, environment=environment).leave()
            return
        with sock:
            sock.settimeout(ANSWER_WITHIN_S)
            send(sock, Hello(PROTOCOL_VERSION, "control", VERSION, os.getpid()))
            receive(sock)
            send(sock, TrainerEnvironment(environment))
