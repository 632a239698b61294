"""The environment of this very process, as workers are to have it; and a process that tells it before it does anything
that takes long, so that what its workers need is begun meanwhile."""

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
    """Where the user's code must run to find what it finds here."""
    return Environment(
        executable=os.fsencode(sys.executable),
        sys_path=tuple(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path),
        directory=os.getcwdb(),
        variables=dict(os.environb),
        preload=tuple(name for name in PRELOADED if name in sys.modules),
        authkey=_authkey(),
    )


def _authkey() -> bytes:
    """Of this process, if it may have a multiprocessing.Manager."""
    if "multiprocessing.managers" not in sys.modules:
        return b""
    return bytes(sys.modules["multiprocessing.process"].current_process().authkey)


def tell_environment(fd: int) -> None:
    """Through the socket `fd`, which stays open. Silent when they do not fit into a message: they come with the program
    all the same."""
    with socket.socket(fileno=os.dup(fd)) as sock, contextlib.suppress(OSError, PrefetchdError):
        send(sock, TrainerEnvironment(encode_environment(current_environment())))
