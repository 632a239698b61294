"""What a worker said before it died counts, though it had not read all that it was told."""

from __future__ import annotations

import os
import socket

from prefetchd.daemon.process.loop import Loop
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.supervisor.child_output import silent
from prefetchd.supervisor.child_process import ChildProcess
from prefetchd.wire.framing import encode
from prefetchd.wire.messages import Fill, Filled
from tests.scenario.forked import forked, told_by


def test_the_results_of_a_worker_that_died_with_tasks_unread_are_heard():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, into = os.pipe()
    child = forked(lambda: None)
    pidfd = os.pidfd_open(child[0])
    result = Filled(((1, 64, 10, 4),))
    theirs.send(encode(result))
    ours.send(encode(Fill(((2, 1, 0, 1, 0, 4, 1),))))
    theirs.close()
    os.close(into)
    loop, heard = Loop(), []
    process = ChildProcess(
        loop,
        ours,
        child[0],
        pidfd,
        output,
        lambda message, fds: heard.append(message),
        lambda how: loop.stop(),
        silent,
    )
    try:
        process.ended_as(ProcessExit.exited(3))
        told_by(child)
        loop.call_later(30.0, loop.stop)
        loop.run()
        assert heard == [result]
    finally:
        process.close()
        loop.close()
