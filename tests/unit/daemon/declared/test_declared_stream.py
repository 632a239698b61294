"""What a look at a dataset tells, when it cannot be used."""

from __future__ import annotations

import os
import uuid

import posix_ipc

from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.daemon.declared.declared_stream import DeclaredStream
from prefetchd.wire.messages import Declared


def test_a_spec_that_cannot_be_read_leaves_neither_descriptor_nor_segment():
    name = f"/prefetchd-test-{uuid.uuid4().hex[:12]}"
    fd = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, size=4096).fd
    settled = []
    # Not through the constructor, which starts the process that would tell this.
    stream = DeclaredStream.__new__(DeclaredStream)
    stream.config = StreamConfig("train", "project.data:train")
    stream._on_settled = lambda: settled.append(stream.failure)
    stream.declared(Declared(b"of another version", name, 4096), fd)
    assert len(settled) == 1
    assert settled[0]
    assert not os.path.exists(f"/dev/shm{name}")
    assert not os.path.exists(f"/proc/self/fd/{fd}")
