"""Whatever comes in on the socket, the daemon says what is wrong, closes that connection, and serves all others."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import tempfile

import msgpack
import psutil
import pytest

from prefetchd.wire.framing import MAX_PACKET_BYTES, MAX_PACKET_FDS, encode
from prefetchd.wire.messages import (
    PROTOCOL_VERSION,
    CloseCursor,
    Consumed,
    GiveBack,
    Goodbye,
    Hello,
    PlaceCursor,
    Program,
    Stop,
    StreamFailed,
    Welcome,
)
from prefetchd.wire.own_segments import open_unnamed
from prefetchd.wire.program_layout import HEAD, LAYOUT_VERSION, MAGIC
from tests.scenario.forked import forked, told_by
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.test_odd_files import most_memory_bytes
from tests.scenario.waiting import is_gone, open_fds, report_when, stopped, until

HELLO = encode(trainer_hello())


@pytest.fixture(autouse=True)
def peers(shared_daemon):
    """Connects a test's peers; afterwards the same daemon must serve others and have nothing left of them."""
    if not shared_daemon.socket.exists():
        shared_daemon.start()
    pid, opened = shared_daemon.pid, []
    before = open_fds(pid)

    def connect() -> Peer:
        opened.append(Peer(shared_daemon.socket))
        return opened[-1]

    yield connect
    for peer in opened:
        peer.sock.close()
    assert not is_gone(pid), "the daemon died: " + shared_daemon.command("logs").stdout
    with Peer(shared_daemon.socket) as peer:
        peer.say(control_hello())
        assert peer.hear().pid == pid
    report_when(
        shared_daemon,
        lambda report: not report.snapshot["daemon"]["sessions"] and not report.snapshot["streams"],
        "all sessions and streams of the test are gone",
    )
    until(lambda: open_fds(pid) == before, f"the daemon has its {before} descriptors again")


# --- bytes that are no message ---


def test_random_bytes_are_refused(peers):
    dice = random.Random(5)
    for size in (1, 2, 17, 300, MAX_PACKET_BYTES):
        peer = peers()
        peer.say(b"\xc1" + dice.randbytes(size - 1))
        assert peer.refusal().code == "protocol"


@pytest.mark.parametrize("kept", range(1, len(HELLO), 7))
def test_a_truncated_hello_is_refused(peers, kept):
    peer = peers()
    peer.say(HELLO[:kept])
    assert peer.refusal().code == "protocol"


@pytest.mark.parametrize("size", [MAX_PACKET_BYTES + 1, 150_000])
def test_a_packet_that_is_too_long_is_refused_with_the_limit(peers, size):
    peer = peers()
    peer.say(msgpack.packb([1, "x" * (size - 5)]))
    refused = peer.refusal()
    assert refused.code == "protocol"
    assert str(MAX_PACKET_BYTES) in refused.message or "truncated" in refused.message


def test_an_empty_packet_ends_the_connection(peers):
    peer = peers()
    peer.say(b"")
    assert peer.hear() is None


def test_deeply_nested_msgpack_is_refused(peers):
    peer = peers()
    peer.say(b"\x91" * 60_000 + b"\x01")
    assert peer.refusal().code == "protocol"


def test_a_flood_of_garbage_on_many_connections(peers):
    dice = random.Random(6)
    crowd = [peers() for _ in range(50)]
    for peer in crowd:
        for _ in range(dice.randrange(1, 5)):
            try:
                peer.say(b"\xc1" + dice.randbytes(dice.randrange(2000)))
            except (BrokenPipeError, ConnectionResetError):
                break
    for peer in crowd:
        peer.refusal()


# --- messages that are not allowed there ---


def test_another_version_is_refused_with_both_and_the_remedy(peers):
    peer = peers()
    peer.say(dataclasses.replace(trainer_hello(), protocol=PROTOCOL_VERSION + 6))
    refused = peer.refusal()
    assert f"protocol {PROTOCOL_VERSION}" in refused.message
    assert str(PROTOCOL_VERSION + 6) in refused.message
    assert "prefetchd stop" in refused.message


def test_a_role_that_does_not_exist_is_refused_with_those_that_do(peers):
    peer = peers()
    peer.say(Hello(PROTOCOL_VERSION, "janitor", "a test", os.getpid()))
    message = peer.refusal().message
    assert "janitor" in message
    assert "'trainer', 'control'" in message


@pytest.mark.parametrize(
    "message",
    [PlaceCursor(1, 0, 0, True), Consumed(1, 0), Goodbye(), Stop(), Program("/x", 0), Welcome(1, "", 1, 1)],
    ids=lambda message: type(message).__name__,
)
def test_a_message_before_hello_is_refused(peers, message):
    peer = peers()
    peer.say(message)
    assert "before Hello" in peer.refusal().message


def test_a_second_hello_is_refused(peers):
    peer = peers()
    peer.say(trainer_hello())
    assert isinstance(peer.hear(), Welcome)
    peer.say(trainer_hello())
    assert "second Hello" in peer.refusal().message


@pytest.mark.parametrize(
    "message",
    [
        Stop(),
        Welcome(1, "", 1, 1),
        StreamFailed("error", ""),
        Consumed(-1, 0, (1, 2)),
        PlaceCursor(-1, 0, 0, True),
        PlaceCursor(1, -1, 0, True),
        PlaceCursor(1, 0, 1 << 61, True),
    ],
    ids=repr,
)
def test_a_trainer_that_says_what_it_must_not_is_refused(peers, message):
    peer = peers()
    peer.say(trainer_hello())
    assert isinstance(peer.hear(), Welcome)
    peer.say(message)
    assert peer.refusal().code == "protocol"


@pytest.mark.parametrize(
    "message",
    [Consumed(1, 1), Consumed(1, -5), GiveBack(1, 3), PlaceCursor(1, 4, 0, False), PlaceCursor(1, 0, 0, True)],
    ids=repr,
)
def test_a_cursor_that_was_offered_nothing_has_nothing_to_tell(peers, message):
    peer = peers()
    peer.say(trainer_hello())
    assert isinstance(peer.hear(), Welcome)
    peer.say(PlaceCursor(1, 0, 0, True))
    peer.say(message)
    assert peer.refusal().code == "protocol"


def test_messages_about_what_is_gone_are_harmless(peers):
    peer = peers()
    peer.say(trainer_hello())
    assert isinstance(peer.hear(), Welcome)
    for message in (CloseCursor(77), GiveBack(77, 5), Consumed(77, 5), Consumed(-1, 0, (1, 2, 3, -1, -1, -1))):
        peer.say(message)
    peer.say(PlaceCursor(1, 0, 0, True))
    peer.say(Consumed(1, 99))
    assert "offered up to" in peer.refusal().message, "it was refused before the last one"


def test_a_control_connection_that_says_what_it_must_not_is_refused(peers):
    for message in (Consumed(1, 1), PlaceCursor(1, 0, 0, True), Program("/x", 0)):
        peer = peers()
        peer.say(control_hello())
        assert isinstance(peer.hear(), Welcome)
        peer.say(message)
        assert type(message).__name__ in peer.refusal().message


# --- a Hello that asks for what cannot be ---


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spec": b"\xc1"}, "not msgpack"),
        ({"spec": b""}, "no stream 'raw' to attach to"),
        ({"spec": msgpack.packb([1, 2])}, "a map"),
        ({"spec": msgpack.packb({"seed": "x"})}, "seed"),
        ({"spec": msgpack.packb({"order": "x" * 50_000})}, "stream spec"),
        ({"fingerprint": "xyz"}, "32 hexadecimal digits"),
        ({"fingerprint": "\x01" * 50_000}, "32 hexadecimal digits"),
        ({"stream": "x" * 50_000}, "200 printable characters"),
        ({"stream": "a\nb"}, "200 printable characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_hello_with_an_impossible_spec_is_refused(peers, change, told):
    peer = peers()
    peer.say(dataclasses.replace(trainer_hello(), **change))
    assert told in peer.refusal().message


# --- descriptors ---


@pytest.mark.parametrize("count", [1, MAX_PACKET_FDS, MAX_PACKET_FDS + 1, 40])
def test_descriptors_that_nobody_asked_for_are_closed(peers, count):
    with tempfile.TemporaryFile() as file:
        peer = peers()
        peer.say(HELLO, [file.fileno()] * count)
        answer = peer.hear()
        if count <= MAX_PACKET_FDS:
            assert isinstance(answer, Welcome)
        else:
            assert answer.code == "protocol"
        before_hello = peers()
        before_hello.say(b"garbage", [file.fileno()] * count)
        before_hello.refusal()


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "/prefetchd-other-program-1", "{prefix}../../etc/passwd", "{prefix}none", "{prefix}\0", ""]
)
def test_a_program_that_is_not_what_it_says_is_refused(peers, shared_daemon, name):
    peer = peers()
    peer.say(trainer_hello())
    assert isinstance(peer.hear(), Welcome)
    with tempfile.TemporaryFile() as file:
        prefix = shared_daemon.paths.segment_name("program", "")
        peer.say(Program(name.format(prefix=prefix), 4096), [file.fileno()])
    assert "program segment" in peer.refusal().message


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 8192, b"PFDPROG\0" + b"\xff" * 8192], ids=len)
def test_a_program_of_garbage_fails_its_stream_alone(peers, shared_daemon, content):
    name = shared_daemon.paths.segment_name("program", "garbage")
    # Without a name, as a client makes it: one that has a name and no lock is a leftover, which the daemon unlinks.
    program = open_unnamed()
    try:
        os.write(program, content)
        peer = peers()
        peer.say(trainer_hello())
        assert isinstance(peer.hear(), Welcome)
        peer.say(Program(name, len(content)), [program])
        failed = peer.hear()
        assert isinstance(failed, StreamFailed), failed
        assert failed.code == "stream_failed"
    finally:
        os.close(program)


@pytest.mark.parametrize(
    ("environment_bytes", "buffers"), [((2 << 30) - 8192, 0), (0, (2 << 30) // 16 - 1024)], ids=["environment", "table"]
)
def test_a_program_that_is_all_holes_is_not_gone_through(peers, shared_daemon, environment_bytes, buffers):
    name = shared_daemon.paths.segment_name("program", f"holes-{buffers}")
    program = open_unnamed()
    pid = shared_daemon.pid
    before, read_before = most_memory_bytes(pid), psutil.Process(pid).io_counters().read_chars
    try:
        os.ftruncate(program, 2 << 30)
        os.write(program, HEAD.pack(MAGIC, LAYOUT_VERSION, 0, environment_bytes, 0, buffers, 2 << 30))
        peer = peers()
        peer.say(trainer_hello())
        assert isinstance(peer.hear(), Welcome)
        other = peers()
        with stopped(shared_daemon):
            # It finds both at once: what it does with the one, the other waits for.
            peer.say(Program(name, 2 << 30), [program])
            other.say(control_hello())
        assert isinstance(other.hear(), Welcome)
        failed = peer.hear()
        assert isinstance(failed, StreamFailed), failed
    finally:
        os.close(program)
    assert most_memory_bytes(pid) - before < 64 << 20
    assert psutil.Process(pid).io_counters().read_chars - read_before < 64 << 20


# --- clients that do not talk, or do not listen ---


def test_a_client_that_says_nothing_keeps_nobody_waiting(peers):
    silent = [peers() for _ in range(20)]
    peer = peers()
    peer.say(control_hello())
    assert isinstance(peer.hear(), Welcome)
    assert silent


def test_a_client_that_dies_without_a_word_leaves_nothing(peers, shared_daemon):

    def say_hello_and_die():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(os.fspath(shared_daemon.socket))
        sock.send(HELLO)
        os._exit(0)

    told_by(forked(say_hello_and_die))


def test_when_the_first_of_a_shared_stream_leaves_before_its_program_another_is_asked(peers):
    first, second = peers(), peers()
    first.say(trainer_hello("both", shared=True))
    assert first.hear().program_wanted
    second.say(trainer_hello("both", shared=True))
    welcome = second.hear()
    assert welcome.stream == "both"
    assert not welcome.program_wanted
    first.sock.close()
    assert second.hear() == dataclasses.replace(welcome, program_wanted=True)


def test_when_another_of_a_shared_stream_leaves_before_its_program_the_first_goes_on(peers):
    first, second = peers(), peers()
    first.say(trainer_hello("both stay", shared=True))
    assert first.hear().program_wanted
    second.say(trainer_hello("both stay", shared=True))
    assert not second.hear().program_wanted
    second.sock.close()
    third = peers()
    third.say(trainer_hello("both stay", shared=True))
    assert not third.hear().program_wanted, "the first one is still to send it"
