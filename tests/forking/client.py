"""Where `subprocess` starts a process: an interpreter is forked from `forking.server` if it would begin as that one has
begun."""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.forking import server
from tests.forking.server import (
    HASH_SEED,
    LENGTH,
    NAME,
    OWNER,
    PAD,
    READ_LATER,
    ROOM_BYTES,
    at_start,
    execute,
    request_of,
)

PRELOADED = (
    *("torch", "torchvision.transforms.v2", "tensordict", "PIL.Image"),
    *("prefetchd_client", "prefetchd.cli.main", "prefetchd.cli.run", "prefetchd.cli.status", "prefetchd.cli.stop"),
    *("prefetchd.daemon.main", "prefetchd.workers.zygote", "prefetchd.workers.worker"),
)
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


MOST_SERVERS = 3
ASKED_OFTEN = 3

_owner = os.getpid()
Kind = tuple[frozenset[tuple[str, str]], tuple[str, ...]]
"""What a server was started with: variables that have their effect at a start, and modules beside PRELOADED."""
_servers: dict[Kind, _Server] = {}
"""The one that was asked last is the last."""
_asked: Counter[Kind] = Counter()
_also: tuple[str, ...] = ()


@contextlib.contextmanager
def forked_interpreters(*also: str) -> Iterator[None]:
    """Interpreters that this process starts are forked meanwhile, where nobody could tell: from one that has imported
    the modules `also`, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OWNER, NAME, _fork_or_execute)
        patch.setitem(globals(), "_also", also)
        yield


_starting = threading.Lock()


def close_servers() -> None:
    """Ends them; what they have forked goes on."""
    if os.getpid() == _owner:
        for each in _servers.values():
            each.close()
        _servers.clear()


atexit.register(close_servers)


def _close_in_child() -> None:
    """A fork of the tests that outlives them must not keep the servers waiting for requests."""
    for each in _servers.values():
        each.close_here()


os.register_at_fork(after_in_child=_close_in_child)


def _fork_or_execute(*arguments: Any) -> int:
    """In the place of `execute`. Each environment that interpreters often begin with has a server of its own."""
    # A fork of the tests has no part in this: the answers would be the tests'.
    asked = request_of(arguments) if os.getpid() == _owner else None
    if asked is None:
        return int(execute(*arguments))
    variables = asked[0]["variables"]
    key = frozenset(at_start(variables).items()), _also
    # An actor's load() starts interpreters in two threads.
    with _starting:
        found = _servers.pop(key, None)
        if found is None:
            _asked[key] += 1
            is_first = not _servers and key == (frozenset(at_start(os.environ).items()), ())
            if not is_first and not _also and _asked[key] < ASKED_OFTEN:
                return int(execute(*arguments))
            _asked[key] = 0
            if len(_servers) == MOST_SERVERS:
                _servers.pop(next(iter(_servers))).close()
            found = _Server(variables, _also)
        _servers[key] = found
        return found.fork(*asked)


class _Server:
    """One `forking.server`."""

    def __init__(self, variables: dict[str, str], also: tuple[str, ...]) -> None:
        self._control, theirs = socket.socketpair()
        room = PAD * (ROOM_BYTES // len(PAD))
        command = [sys.executable, server.__file__, str(theirs.fileno()), *PRELOADED, *also, room]
        # Its own path only: those that it forks may have others. Nor has it what our modules read when they are
        # imported: it imports them for others, too.
        begins = HASH_SEED | {
            name: value
            for name, value in variables.items()
            if name not in READ_LATER and not name.startswith(server.READ_BY_OURS)
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OWNER, NAME, execute)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], cwd="/", stdin=subprocess.DEVNULL, env=begins | {PAD: room}
            )
        theirs.close()

    def fork(self, request: dict[str, Any], fds: list[int]) -> int:
        """The pid of a child of this process, which is what the request says."""
        body = json.dumps(request).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._control.sendmsg([LENGTH.pack(len(body))], rights)
            self._control.sendall(body)
            (length,) = LENGTH.unpack(self._receive(LENGTH.size))
            return int(self._receive(length))
        finally:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _receive(self, length: int) -> bytes:
        found = self._control.recv(length, socket.MSG_WAITALL)
        assert len(found) == length, "the server of interpreters is gone"
        return found

    def close_here(self) -> None:
        self._control.close()

    def close(self) -> None:
        self._control.close()
        self._process.wait()
