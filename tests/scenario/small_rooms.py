"""A shared memory of few MiB, for a script and the daemon that it starts: a mount namespace of their own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import pytest

ROOM_BYTES = 24 << 20
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
"""Flags of unshare(2)."""

OWN_MOUNTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def done(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

done(libc.unshare({flags}))
if {flags} & 0x10000000:
    for name, text in (("setgroups", "deny"), ("uid_map", "0 {uid} 1"), ("gid_map", "0 {gid} 1")):
        with open(f"/proc/self/{{name}}", "w") as file:
            file.write(text)
# MS_REC | MS_PRIVATE: nobody else sees what is mounted.
done(libc.mount(None, b"/", None, 0x4000 | 0x40000, None))
"""

PROLOGUE = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", "/dev/shm"], check=True)
import torch
# What it starts are forks of it, which would wait for threads that they do not have.
torch.set_num_threads(1)
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
    whole = _own_mounts() + PROLOGUE + textwrap.indent(textwrap.dedent(script), "    ") + EPILOGUE
    done = subprocess.run(
        [sys.executable, "-c", whole],
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


@functools.cache
def _own_mounts() -> str:
    """What gives an interpreter mounts of its own, as root, or in a user namespace that makes one of us. It does so
    itself: one that `unshare` executes would import torch once more, and so would its daemon's zygotes."""
    for flags in (CLONE_NEWNS, CLONE_NEWNS | CLONE_NEWUSER):
        script = OWN_MOUNTS.format(flags=flags, uid=os.geteuid(), gid=os.getegid())
        mount = "subprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', '/dev/shm'], check=True)"
        command = [sys.executable, "-c", f"{script}import subprocess\n{mount}"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return script
    pytest.skip("no right to make a mount namespace")
