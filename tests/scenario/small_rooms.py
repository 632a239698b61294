"""A shared memory of few MiB, for a script and the daemon that it starts: a mount namespace of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import pytest

ROOM_BYTES = 24 << 20

PROLOGUE = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", "/dev/shm"], check=True)
import torch
from prefetchd_client import PrefetchLoader
from prefetchd.wire.errors import *
from tests.scenario.bad_datasets import Rows, Strings

def occupy(size=None):
    '''Takes that much of the room, or all that is left.'''
    with open("/dev/shm/somebody-else", "wb") as file:
        left = os.statvfs("/dev/shm").f_bavail * 4096
        os.posix_fallocate(file.fileno(), 0, left if size is None else size)

# Batches of 4 of them, the eleventh far longer than the others.
LENGTHS = [1000] * 40 + [200_000] * 4 + [1000] * 36

def take_while_full(iterator, fill):
    '''Two batches of Strings(LENGTHS), then fill(), then the others: whether they are right, and the errors.'''
    seen, errors = [len(next(iterator)[0]) for _ in range(2)], []
    fill()
    for _ in range(18):
        try:
            seen.append(len(next(iterator)[0]))
        except BatchTooLargeError as error:
            errors.append(str(error))
    return seen == [1000] * 19 or seen, errors

def prefetchd(*arguments):
    return subprocess.run([sys.executable, "-m", "prefetchd", *arguments], capture_output=True, text=True)

try:
"""
EPILOGUE = """
finally:
    prefetchd("stop")
    print("left:", [name for name in os.listdir("/dev/shm") if name != "somebody-else"])
"""


def in_a_small_room(script: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What the script printed: by the first word of each line, the rest of it. Skips the test where namespaces may not
    be made."""
    command = _unshare()
    whole = PROLOGUE + textwrap.indent(textwrap.dedent(script), "    ") + EPILOGUE
    done = subprocess.run(
        [*command, sys.executable, "-c", whole],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["left:"] == "[]", "the daemon has left something"
    return said


def _unshare() -> list[str]:
    """As root, or in a user namespace that makes one of us."""
    for rights in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *rights, "--mount", "--propagation", "private"]
        mount = "mount -t tmpfs tmpfs /dev/shm"
        if (
            shutil.which("unshare")
            and not subprocess.run([*command, "sh", "-c", mount], capture_output=True, check=False).returncode
        ):
            return command
    pytest.skip("no right to make a mount namespace")
