"""Sessions: what waits for a slow peer, what a refused one may still do, and when a connection ends."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.refusal_log import RefusalLog
from prefetchd.daemon.sockets.sessions import (
    OUTBOX_LIMIT,
    REFUSAL_CHARACTERS,
    Session,
)
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.framing import MAX_PACKET_BYTES, decode, encode, receive_with_fds
from prefetchd.wire.messages import (
    PROTOCOL_VERSION,
    Farewell,
    Goodbye,
    Hello,
    Output,
    Program,
    Refused,
    RingOpened,
    Stop,
    Welcome,
)

HELLO = Hello(PROTOCOL_VERSION, "trainer", "a test", 1)


class Events:
    """Remembers what the sessions tell; `answer` is raised by every message, if it is an error."""

    def __init__(self):
        self.told = []
        self.fds = []
        self.answer = None

    def _note(self, what, message):
        self.told.append((what, message))
        if self.answer is not None:
            raise self.answer

    def trainer_hello(self, session, hello):
        self._note("hello", hello)

    def trainer_program(self, session, program, fds):
        self.fds += fds.take()
        self._note("program", program)

    def trainer_message(self, session, message):
        self._note("trainer", message)

    def control_message(self, session, message):
        self._note("control", message)

    def session_ready(self, session):
        self._note("ready", None)

    def session_ended(self, session):
        self.told.append(("ended", session.number))


class World:
    """A session on one end of a pair of sockets, the peer on the other, and a loop that turns when it is told to."""

    def __init__(self, with_process=False):
        self.loop = Loop()
        self.events = Events()
        ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peer.setblocking(False)
        # Stands for the peer's process: it dies when it is told to.
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE) if with_process else None
        pidfd = os.pidfd_open(self.process.pid) if self.process is not None else -1
        self.introduced = []
        self.session = Session(7, ours, self.loop, self.events, pidfd, self.introduced.append, RefusalLog())

    def turn(self, rounds=3):
        for _ in range(rounds):
            self.loop.call_later(0.0, self.loop.stop)
            self.loop.run()

    def say(self, *messages):
        for message in messages:
            self.peer.send(message if isinstance(message, bytes) else encode(message))
        self.turn()

    def heard(self):
        """All that the peer can read now; None for the end."""
        found = []
        while True:
            try:
                packet = self.peer.recv(MAX_PACKET_BYTES + 1)
            except BlockingIOError:
                return found
            except ConnectionResetError:
                continue
            if not packet:
                return [*found, None]
            found.append(decode(packet))

    def fill_socket(self):
        """Sends until something waits; how many messages that took."""
        count = 0
        while self.session.is_clear:
            self.session.send(Output(count, "x" * 1000))
            count += 1
        return count

    def end_process(self):
        self.process.stdin.close()
        self.process.wait()

    def close(self):
        self.session.close()
        self.peer.close()
        self.loop.close()


@pytest.fixture
def world():
    before = len(os.listdir("/proc/self/fd"))
    found = World()
    yield found
    found.close()
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left"


@pytest.fixture
def world_with_process():
    found = World(with_process=True)
    yield found
    found.end_process()
    found.close()


# --- what may be said when ---


def test_a_trainer_s_messages_reach_it_after_its_hello(world):
    world.say(HELLO, Goodbye())
    assert world.events.told == [("hello", HELLO), ("trainer", Goodbye())]
    assert world.session.role == "trainer"


def test_a_control_connection_is_told_apart(world):
    hello = Hello(PROTOCOL_VERSION, "control", "a test", 1)
    world.say(hello, Stop())
    assert world.events.told == [("control", hello), ("control", Stop())]


@pytest.mark.parametrize(
    ("packets", "told"),
    [
        ([Goodbye()], "before Hello"),
        ([HELLO, HELLO], "second Hello"),
        ([Hello(PROTOCOL_VERSION, "x" * 50_000, "", 1)], "allowed: 'trainer', 'control'"),
        ([b"\xc1"], "not msgpack"),
        ([HELLO, b"\x91\xcd\x30\x39"], "12345 is unknown"),
    ],
)
def test_what_is_not_allowed_ends_the_session_with_a_reason(world, packets, told):
    world.say(*packets)
    *_, refused, end = world.heard()
    assert isinstance(refused, Refused)
    assert refused.code == "protocol"
    assert told in refused.message
    assert end is None
    assert world.events.told[-1] == ("ended", 7)


def test_an_error_of_whoever_handles_the_message_is_told_by_its_code(world):
    world.events.answer = CallerError("rank is 9; allowed: 0 to 1")
    world.say(HELLO)
    assert world.heard() == [Refused("caller", "rank is 9; allowed: 0 to 1"), None]


def test_a_long_reason_is_cut(world):
    world.session.refuse(ProtocolError("Ж" * 1_000_000))
    assert world.heard() == [Refused("protocol", "Ж" * REFUSAL_CHARACTERS), None]


def test_a_peer_that_says_nothing_is_sent_away_in_the_end(world):
    world.session.check_hello()
    (refused, end) = world.heard()
    assert refused == Refused("protocol", "no Hello within 60 s")
    assert end is None
    world.session.check_hello()


def test_a_peer_that_has_said_hello_may_be_silent(world):
    world.say(HELLO)
    world.session.check_hello()
    assert world.heard() == []


def test_after_a_refusal_nothing_more_is_done_for_the_peer(world):
    """Its answer is still on the way; what it says meanwhile is read and dropped."""
    world.say(HELLO)
    world.fill_socket()
    world.session.refuse(ProtocolError("enough"))
    world.session.send(Farewell("too late"))
    before = list(world.events.told)
    world.say(Goodbye(), b"\xc1", Goodbye())
    assert world.events.told == before
    heard = []
    while None not in heard:
        heard += world.heard()
        world.turn()
    assert heard[-2:] == [Refused("protocol", "enough"), None]
    assert world.events.told[-1] == ("ended", 7)


def test_the_peer_s_end_ends_the_session_once(world):
    world.say(HELLO)
    world.peer.close()
    world.turn()
    world.session.close()
    assert world.events.told == [("hello", HELLO), ("ended", 7)]
    assert not world.session.is_clear
    world.session.send(Farewell("to nobody"))


def test_what_a_peer_said_before_it_left_counts_though_it_has_not_read_all(world):
    """Then the kernel resets the connection, and says so before it hands out what is still queued: a Goodbye would be
    taken for a crash."""
    world.session.send(Farewell("unread"))
    world.peer.send(encode(HELLO))
    world.peer.send(encode(Goodbye()))
    world.peer.close()
    world.turn()
    assert world.events.told == [("hello", HELLO), ("trainer", Goodbye()), ("ended", 7)]


def test_a_chatty_peer_leaves_the_others_their_turn(world):
    """At most a few messages are handled before the loop goes on."""
    for _ in range(150):
        world.peer.send(encode(Goodbye()) if world.events.told or _ else encode(HELLO))
    handled = []
    world.loop.after_each(lambda: handled.append(len(world.events.told)))
    world.turn(6)
    assert handled[0] < 150
    assert handled[-1] == 150


# --- descriptors ---


def test_a_program_s_descriptor_is_handed_on_and_all_others_are_closed(world):
    with open(os.devnull, "rb") as file:
        fd = file.fileno()
        before = len(os.listdir("/proc/self/fd"))
        world.say(HELLO)
        socket.send_fds(world.peer, [encode(Goodbye())], [fd, fd])
        socket.send_fds(world.peer, [encode(Program("/p", 1))], [fd])
        world.turn()
        assert world.events.told[-2:] == [("trainer", Goodbye()), ("program", Program("/p", 1))]
        assert len(os.listdir("/proc/self/fd")) == before + 1
        os.close(world.events.fds[0])


@pytest.mark.parametrize("count", [0, 2])
def test_a_program_without_exactly_one_descriptor_is_an_ordinary_message(world, count):
    with open(os.devnull, "rb") as file:
        world.say(HELLO)
        socket.send_fds(world.peer, [encode(Program("/p", 1))], [file.fileno()] * count)
        world.turn()
        assert world.events.told[-1] == ("trainer", Program("/p", 1))


def test_a_descriptor_that_waits_is_a_copy_and_closed_with_the_session(world):
    world.say(HELLO)
    world.fill_socket()
    with open(os.devnull, "rb") as file:
        world.session.send(RingOpened(1), [file.fileno()])
    heard = []
    while True:
        world.turn()
        try:
            message, fds = receive_with_fds(world.peer)
        except BlockingIOError:
            break
        heard.append(message)
        for fd in fds:
            assert os.readlink(f"/proc/self/fd/{fd}") == os.devnull
            os.close(fd)
    assert heard[-1] == RingOpened(1)
    world.fill_socket()
    with open(os.devnull, "rb") as file:
        world.session.send(RingOpened(1), [file.fileno()])
    world.session.close()


# --- peers that do not read ---


def test_what_the_peer_does_not_take_waits_in_order_and_it_is_told_when_all_has_left(world):
    world.say(HELLO)
    sent = world.fill_socket()
    for number in range(sent, sent + 20):
        world.session.send(Output(number, ""))
    assert ("ready", None) not in world.events.told
    heard = []
    while len(heard) < sent + 20:
        heard += world.heard()
        world.turn()
    assert [message.worker for message in heard] == list(range(sent + 20))
    assert world.events.told == [("hello", HELLO), ("ready", None)]
    assert world.session.is_clear


def test_a_peer_that_never_reads_is_cut_off(world):
    world.say(HELLO)
    sent = 0
    while ("ended", 7) not in world.events.told:
        world.session.send(Output(0, "x" * 1000))
        sent += 1
        assert sent < 10_000
    assert sent > OUTBOX_LIMIT
    world.turn()


def test_closing_when_sent_waits_for_a_slow_peer(world):
    world.say(HELLO)
    sent = world.fill_socket()
    world.session.send(Farewell("bye"))
    world.session.close_when_sent()
    assert ("ended", 7) not in world.events.told
    heard = []
    while None not in heard:
        heard += world.heard()
        world.turn()
    assert len(heard) == sent + 2
    assert heard[-2:] == [Farewell("bye"), None]


def test_an_answer_that_does_not_fit_ends_the_session_and_nothing_else(world):
    world.say(HELLO)
    world.session.send(Welcome(1, "x" * MAX_PACKET_BYTES, 1, 1))
    refused, end = world.heard()
    assert isinstance(refused, Refused)
    assert f"allowed: {MAX_PACKET_BYTES} bytes" in refused.message
    assert end is None


def test_a_message_to_a_peer_that_has_gone_ends_the_session(world):
    world.peer.close()
    world.session.send(Farewell("bye"))
    world.session.send(Farewell("and again"))
    world.turn()
    assert world.events.told == [("ended", 7)]


def test_what_a_peer_said_before_it_left_counts_though_something_was_sent_to_it_then(world):
    """Found as a loader that was closed in order, and whose ring lingered as after a crash."""
    world.peer.send(encode(HELLO))
    world.peer.send(encode(Goodbye()))
    world.peer.close()
    world.session.send(Farewell("too late"))
    world.turn()
    assert world.events.told == [("hello", HELLO), ("trainer", Goodbye()), ("ended", 7)]


# --- the peer's process ---


@pytest.mark.parametrize("asked", [True, False], ids=["asked for", "in its turn"])
def test_a_dead_peer_s_session_ends_though_its_connection_does_not(world_with_process, asked):
    """A forked child of it may keep that open. What it said before it died counts."""
    world = world_with_process
    world.say(HELLO)
    assert world.events.told == [("hello", HELLO)], "it lives"
    world.peer.send(encode(Goodbye()))
    world.end_process()
    if asked:
        world.session.end_dead()
    else:
        world.turn()
    assert world.session.peer_is_dead
    assert world.events.told == [("hello", HELLO), ("trainer", Goodbye()), ("ended", 7)]
