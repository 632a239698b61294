"""Runs the bridge: the process beside the daemon that gives one stream's tasks to remote workers, and writes what they
make into the ring.

It alone knows of Ray. To the daemon it is a child like others: a socket that carries commands and answers, and a pidfd
after whose end nothing of it writes any more. The rules:

1. The bridge is the only process that writes to the ring for remote workers. It writes a batch only while its task is
   known and was not taken back; so a node that comes back from the dead changes nothing.
2. A remote worker is a lane of an actor (placement). Actors that fail take their lanes' tasks with them, which the
   daemon gives to others; nobody else is asked here a second time.
3. Ray calls back in threads of its own. They only put down what came; all else is done by the loop's thread.
4. It ends with its daemon, at the end of their socket; its actors end with it.
5. A batch is written once the files that the node read for it are known to be those of this machine (data_check). What
   the file system makes wait there are threads of their own.
6. A worker that is still at a task HANGS_AFTER_S after that was taken back is ended, and another one takes its lane:
   else a sample that hangs on one machine alone would keep a worker for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import mmap
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from prefetchd.daemon.process.loop import Loop
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes.environment import read_environment
from prefetchd.remote.comparison import versions_here
from prefetchd.remote.data_check import Comparison, DataCheck
from prefetchd.remote.narrowing import Packed, unpack
from prefetchd.remote.node_environment import program_with
from prefetchd.remote.placement import Actor, Placement
from prefetchd.remote.program_parts import NoPartsError, describe_program
from prefetchd.remote.ray_cluster import NO_NODE_ANY_MORE, ClusterError, RayCluster, ask
from prefetchd.wire.cluster_address import AUTO, EVERYWHERE, check_security, resolve_address
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.framing import close_all, decode, disclose, enclose, encode, receive_with_fds, send
from prefetchd.wire.messages import (
    BridgeUsed,
    DataDiffers,
    Filled,
    FillRemote,
    LateAnswer,
    Message,
    OpenBridge,
    Ready,
    RemoteAnswer,
    RemoteEnded,
    RemotePrinted,
    RemoteReady,
    RemoteWaits,
    Revoke,
    Revoked,
    Spent,
    StartRemote,
    StopRemote,
    Unreachable,
    UseRing,
)
from prefetchd.wire.os_errors import why
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.remote_resources import decode_resources
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.stream_spec import decode_spec
from prefetchd.workers.process_setup import die_with_parent, leave_signals_to_daemon, name_process

if TYPE_CHECKING:
    from prefetchd.remote.actor import Loaded, Made


HANGS_AFTER_S = 30.0
WAITS_AFTER_S = 10.0
"""Seconds after which an actor that Ray has not started waits for CPUs, and does not merely start."""
REPORTS_EVERY_S = 5.0
CHECKS_AT_ONCE = 4
"""Threads that look at files: one that waits for a network's file system is not to stop the others."""


@dataclasses.dataclass(eq=False)
class _Task:
    """A task on its way: which worker has it, its slot, and whether it was taken back."""

    number: int
    worker: int
    slot: int
    began_us: int
    is_revoked: bool = False


class Bridge:
    """Serves the daemon at `sock`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = Loop()
        self._came: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._spec = b""
        self._cluster: RayCluster | None = None
        self._parts: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._shared_program: Any = None
        self._ring: RingMemory | None = None
        self._layout = b""
        self._placement = Placement()
        self._tasks: dict[int, _Task] = {}
        self._received_bytes = 0
        self._used_us = 0
        self._data = DataCheck()
        self._checks = ThreadPoolExecutor(CHECKS_AT_ONCE, "prefetchd-files")

    def serve(self) -> None:
        """Serves until the socket's end. Blocks."""
        self._loop.watch(self._sock.fileno(), self._readable)
        self._loop.watch(self._wake_fd, self._woken)
        self._loop.run()
        if self._cluster is not None:
            self._cluster.close()

    # --- from the daemon ---

    def _readable(self) -> None:
        message, fds = receive_with_fds(self._sock)
        if message is None:
            self._loop.stop()
            return
        message, fds = disclose(message, fds)
        if isinstance(message, OpenBridge):
            self._open(message, fds[0])
        elif isinstance(message, UseRing):
            self._use_ring(fds[0], message.layout)
        elif isinstance(message, StartRemote):
            self._placement.want(message.workers)
            self._place()
        elif isinstance(message, StopRemote):
            self._stop(message.worker)
        elif isinstance(message, FillRemote):
            self._fill(message)
        elif isinstance(message, Revoke):
            self._revoke(message.task)
        else:
            close_all(fds)

    def _open(self, message: OpenBridge, program_fd: int) -> None:
        """Reaches the cluster. Blocks: there is nothing else to do before."""
        self._spec = message.spec
        try:
            address = resolve_address(message.address, os.environ)
            check_security(address, os.environ, insecure=message.insecure)
            # Before all that takes time: where there is no cluster, it is asked again and again.
            ask(address)
            environment = read_environment(program_fd)
            self._versions, self._parts = versions_here(), describe_program(program_fd, environment)
            # What opens the trainer's own managers is not for other machines.
            program = memoryview(mmap.mmap(program_fd, 0, prot=mmap.PROT_READ))
            shared_fd = program_with(dataclasses.replace(environment, authkey=b""), program)
            shared = mmap.mmap(shared_fd, 0, prot=mmap.PROT_READ)
            os.close(shared_fd)
            resources = decode_resources(decode_spec(self._spec).remote_resources)
            self._cluster = RayCluster(address, self._lost, self._troubled, resources)
            self._watch_raylet(self._cluster.raylet_pid)
            if not self._cluster.is_local:
                # Ray answers at all of the machine's addresses, whatever it was asked for at.
                check_security(EVERYWHERE, os.environ, insecure=message.insecure)
            self._shared_program = self._cluster.share(shared)
        except (CallerError, ClusterError, NoPartsError, ProtocolError, OSError) as error:
            if isinstance(error, CallerError):
                # A cluster of this machine may be started yet.
                is_final = message.address != AUTO or self._cluster is not None
            else:
                is_final = error.is_final if isinstance(error, ClusterError) else not isinstance(error, OSError)
            self._tell(Unreachable(why(error) if isinstance(error, OSError) else str(error), is_final))
            self._loop.stop()
            return
        finally:
            os.close(program_fd)
        kill_point("bridge.open")
        self._tell(Ready())
        # What it took to begin is not what receiving takes.
        self._used_us = time.process_time_ns() // 1000
        self._report()

    def _report(self) -> None:
        """Reports what receiving has cost, now and then."""
        assert self._cluster is not None
        used_us, stat = time.process_time_ns() // 1000, process_stat(self._cluster.raylet_pid)
        raylet_us = stat.cpu_us if stat is not None else 0
        self._tell(BridgeUsed(self._received_bytes, used_us - self._used_us, raylet_us))
        self._received_bytes, self._used_us = 0, used_us
        self._loop.call_later(REPORTS_EVERY_S, self._report)

    def _lost(self, reason: str) -> None:
        """Ends the bridge: it has no cluster any more. In any thread."""
        with contextlib.suppress(OSError, ProtocolError):
            send(self._sock, Unreachable(reason, False))
        os._exit(1)

    def _troubled(self, reason: str) -> None:
        """Tells the daemon what will be the reason if this process ends. In any thread."""
        self._post(partial(self._tell, Unreachable(reason, False)))

    def _watch_raylet(self, pid: int) -> None:
        """Ends the bridge with this machine's raylet: Ray takes some 13 s to do so, and does not say why."""
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid) if pid else -1
            if pidfd >= 0:
                self._loop.watch(pidfd, lambda: self._lost(NO_NODE_ANY_MORE))

    def _use_ring(self, fd: int, layout: bytes) -> None:
        if self._ring is not None:
            self._ring.close()
        self._ring, self._layout = RingMemory(fd), layout
        self._place()

    def _place(self) -> None:
        """Asks for actors for the remote workers that have none."""
        if self._cluster is None or self._ring is None:
            return
        for lanes in self._placement.sizes(self._cluster.free_cpus, self._cluster.largest_node_cpus):
            actor = self._placement.add(lanes)
            # Each lane has two tasks at most; beside them there are close(), and one abandon() at a time.
            actor.handle = self._cluster.start(lanes, 2 * lanes + 2)
            arguments = (
                self._shared_program,
                self._spec,
                self._layout,
                self._ring.header.slot_bytes,
                lanes,
                self._versions,
                self._parts,
            )
            self._call(actor, "node", (), partial(self._came_up, actor))
            self._call(actor, "load", arguments, partial(self._loaded, actor))
            self._loop.call_later(WAITS_AFTER_S, partial(self._look_at, actor, lanes))

    def _came_up(self, actor: Actor, node: str | None, error: str) -> None:
        # Where it has failed, load() has too, and says so.
        actor.is_there = node is not None
        why_unusable = self._cluster.why_unusable(node) if node is not None and self._cluster is not None else ""
        if why_unusable:
            self._lose(actor, why_unusable, is_final=True)

    def _look_at(self, actor: Actor, lanes: int) -> None:
        """Tells the daemon what an actor waits for that has not come. Where nodes have room for smaller ones, asks for
        these in its place."""
        if self._cluster is None or actor.is_there or not actor.workers:
            return
        free = self._cluster.free_cpus
        if 0 < max(free, default=0) < lanes:
            self._placement.want(actor.workers)
            self._end(actor)
            self._place()
            return
        have = f"each node has {max(free)} free at most" if free else "no node has CPUs"
        cpus = "1 CPU" if lanes == 1 else f"{lanes} CPUs"
        self._tell(RemoteWaits(f"waiting for {cpus} on one node; {have}"))
        self._loop.call_later(WAITS_AFTER_S, partial(self._look_at, actor, lanes))

    def _stop(self, worker: int) -> None:
        self._end_tasks(worker)
        actor = self._placement.leave(worker)
        self._tell(RemoteEnded(worker, ""))
        if actor is not None and not actor.workers:
            self._end(actor)

    def _fill(self, message: FillRemote) -> None:
        place = self._placement.place_of(message.worker)
        keys = message.keys or (b"",) * len(message.tasks)
        for row, its_keys in zip(message.tasks, keys):
            number, slot = row[0], row[6]
            if place is None:
                # Its end is on the way to the daemon.
                continue
            task = self._tasks[number] = _Task(number, message.worker, slot, _now_us())
            actor, lane = place
            self._call(actor, "fill", (lane, row, its_keys), partial(self._made, actor, task))
            kill_point("bridge.task.sent")

    def _revoke(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None and not task.is_revoked:
            task.is_revoked = True
            self._tell(Revoked(number))
            self._loop.call_later(HANGS_AFTER_S, partial(self._abandon, task))

    def _abandon(self, task: _Task) -> None:
        """Ends the worker that is at the task, if it still is (rule 6)."""
        place = self._placement.place_of(task.worker)
        if place is not None and self._tasks.get(task.number) is task:
            actor, lane = place
            # Its answer is that of the task.
            self._call(actor, "abandon", (lane, task.number), lambda _, error: None)

    # --- from actors ---

    def _call(self, actor: Actor, method: str, arguments: tuple[Any, ...], then: Callable[[Any, str], None]) -> None:
        assert self._cluster is not None

        def came(result: Any, error: str) -> None:
            self._post(lambda: then(result, error))

        self._cluster.call(actor.handle, method, arguments, came)

    def _post(self, what: Callable[[], None]) -> None:
        """Lets the loop's thread do something (rule 3). In any thread."""
        self._came.append(what)
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def _woken(self) -> None:
        os.eventfd_read(self._wake_fd)
        while self._came:
            self._came.popleft()()

    def _loaded(self, actor: Actor, loaded: Loaded | None, error: str) -> None:
        if loaded is None or loaded.refusal:
            where = f" on {loaded.host}" if loaded is not None else ""
            reason = error if loaded is None else loaded.refusal
            self._lose(actor, f"an actor{where} cannot make these batches: {reason}", is_final=loaded is not None)
            return
        for worker in actor.workers:
            self._tell(RemoteReady(worker, loaded.host, loaded.processor))

    def _made(self, actor: Actor, task: _Task, made: Made | None, error: str) -> None:
        if made is None or made.failure:
            self._lose(actor, error if made is None else made.failure)
            return
        if made.lines or made.left_out:
            lines = tuple(line.encode("utf-8", "replace") for line in made.lines)
            self._tell(RemotePrinted(task.worker, lines, made.left_out))
        answer = decode(made.packet)
        if isinstance(answer, Filled) and answer.opened:
            self._compare_files(actor, task, made, answer.opened[0])
        else:
            self._answer(task, made)

    def _compare_files(
        self, actor: Actor, task: _Task, made: Made, opened: bytes, digests: Sequence[int] | None = None
    ) -> None:
        """Compares the files of a batch in a thread (rule 5). `digests` are the node's, once they were asked for."""

        def compare() -> None:
            try:
                found = self._data.compare(opened, digests)
            except Exception as error:
                # What the node has sent is no list of files.
                self._post(partial(self._lose, actor, f"its files cannot be compared: {error!r}"))
            else:
                self._post(partial(self._compared, actor, task, made, opened, found))

        self._checks.submit(compare)

    def _compared(self, actor: Actor, task: _Task, made: Made, opened: bytes, found: Comparison) -> None:
        if found.difference is not None:
            if self._ends(task):
                path, what = found.difference.path, found.difference.what
                self._tell(DataDiffers(task.worker, task.number, path, what, found.difference.is_recent))
        elif found.doubtful:

            def came(digests: list[int] | None, error: str) -> None:
                if digests is None:
                    self._lose(actor, error)
                else:
                    self._compare_files(actor, task, made, opened, digests)

            self._call(actor, "digests", (found.doubtful,), came)
        else:
            self._answer(task, made, found.opened_here)

    def _ends(self, task: _Task) -> bool:
        """Ends the task. Returns True while the daemon waits for its answer."""
        if self._tasks.pop(task.number, None) is None:
            # Its worker was given back.
            return False
        if task.is_revoked:
            self._tell(LateAnswer(task.worker, task.number))
            return False
        return True

    def _answer(self, task: _Task, made: Made, opened_here: bytes | None = None) -> None:
        """Writes a task's batch and sends its answer. `opened_here` are the batch's files as they are here."""
        if not self._ends(task):
            return
        packet = made.packet
        answer = decode(packet) if opened_here is not None else None
        if isinstance(answer, Filled):
            packet = encode(dataclasses.replace(answer, opened=(opened_here,) if opened_here else ()))
        if made.payload is not None and not self._write(task.slot, made.payload):
            packet = encode(Spent(task.number, "the batch has no room in one slot"))
        transfer_us = max(0, _now_us() - task.began_us - made.here_us)
        kill_point("bridge.answer.untold")
        self._tell(RemoteAnswer(task.worker, packet, transfer_us))
        kill_point("bridge.answer.told")

    def _write(self, slot: int, packed: Packed) -> bool:
        """Writes a batch into its slot; False when it does not fit."""
        assert self._ring is not None
        target = self._ring.batch(slot)
        if packed.payload_bytes > ctypes.sizeof(target):
            return False
        kill_point("bridge.batch.unwritten")
        self._received_bytes += packed.payload_bytes
        unpack(packed, target)
        return True

    def _lose(self, actor: Actor, reason: str, *, is_final: bool = False) -> None:
        """Gives up an actor, and all that it was to do (rule 2)."""
        for worker in list(actor.workers):
            self._end_tasks(worker)
            self._placement.leave(worker)
            self._tell(RemoteEnded(worker, reason, is_final))
        self._end(actor)

    def _end(self, actor: Actor) -> None:
        assert self._cluster is not None
        self._placement.remove(actor)
        self._cluster.end(actor.handle)

    def _end_tasks(self, worker: int) -> None:
        for number in [each.number for each in self._tasks.values() if each.worker == worker]:
            del self._tasks[number]

    def _tell(self, message: Message) -> None:
        """Sends a message. The daemon's end is seen when the socket is read from."""
        enclosed, fds = enclose(message)
        try:
            with contextlib.suppress(ConnectionError):
                send(self._sock, enclosed, fds)
        finally:
            close_all(fds)


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def main(parent: str, sock_fd: str) -> None:
    """Runs an executed bridge: the daemon's pid, and the descriptor of the socket to it."""
    die_with_parent(int(parent))
    leave_signals_to_daemon()
    name_process("prefetchd-ray")
    sock = socket.socket(fileno=int(sock_fd))
    # Handed over for us, not for what Ray executes.
    os.set_inheritable(sock.fileno(), False)
    Bridge(sock).serve()
