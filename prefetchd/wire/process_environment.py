"""Describes the environment of this very process, as workers are to have it; and sends it to the daemon before this
process does anything slow, so that what its workers need is started meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.framing import send
from prefetchd.wire.messages import TrainerEnvironment
from prefetchd.wire.program_layout import Environment, encode_environment

PRELOADED = ("numpy", "torch", "torchvision", "torchvision.transforms.v2", "PIL.Image", "tensordict")


def current_environment() -> Environment:
    """Describes where the user's code must run to find what it finds here."""
    return Environment(
        executable=os.fsencode(sys.executable),
        sys_path=tuple(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path),
        directory=os.getcwdb(),
        variables=dict(os.environb),
        preload=tuple(name for name in PRELOADED if name in sys.modules),
        authkey=_authkey(),
    )


def _authkey() -> bytes:
    """Returns this process's multiprocessing key if it may have a multiprocessing.Manager, else b""."""
    if "multiprocessing.managers" not in sys.modules:
        return b""
    return bytes(sys.modules["multiprocessing.process"].current_process().authkey)


def tell_environment(fd: int) -> None:
    """Sends this process's environment through the socket `fd`, which stays open. Fails silently when it does not fit
    into a message: it comes with the program all the same."""
    with socket.socket(fileno=os.dup(fd)) as sock, contextlib.suppress(OSError, PrefetchdError):
        send(sock, TrainerEnvironment(encode_environment(current_environment())))
