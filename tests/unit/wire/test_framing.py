"""Whatever comes over a socket is a message or a ProtocolError, and no descriptor is ever left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import tracemalloc

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import example, given

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import (
    MAX_PACKET_BYTES,
    MAX_PACKET_FDS,
    close_all,
    decode,
    encode,
    receive,
    receive_with_fds,
    send,
)
from prefetchd.wire.messages import MESSAGE_TYPES, Goodbye, Message, Output, Program, Ready
from tests.budgets import tries
from tests.unit.wire.golden.examples import MESSAGES

VALID = [encode(message) for message in MESSAGES]
WRONG_OF_ANNOTATION = {
    "int": [None, True, 1.0, "1", b"1", [1], {}],
    "str": [None, 1, False, b"x", ["x"], {}],
    "bytes": [None, 1, "x", [b"x"], [1]],
    "bool": [None, 0, 1, "true", b"", []],
    "Ints": [None, 1, "1", b"1", [True], [1.0], ["1"], [[1]], [1, None], {}],
    "Rows": [None, 1, "1", b"", [1], [[1], 2], [[True]], [[[1]]], [["1"]], [{}], {}],
    "Blobs": [None, 1, "x", b"x", ["x"], [1], [[b"x"]], {}],
}


def assert_message_or_protocol_error(packet: bytes) -> None:
    try:
        message = decode(packet)
    except ProtocolError:
        return
    assert type(message) in MESSAGE_TYPES.values()
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
@tries(300)
def test_random_bytes_are_a_message_or_a_protocol_error(packet):
    assert_message_or_protocol_error(packet)


@given(st.sampled_from(sorted(MESSAGE_TYPES)), st.integers(0, 15), st.binary(max_size=100))
@tries(300)
def test_random_bytes_after_a_known_number_are_a_message_or_a_protocol_error(number, fields, rest):
    assert_message_or_protocol_error(bytes([0x90 | fields, number]) + rest)


@given(st.sampled_from(VALID), st.data())
@tries(400)
def test_a_damaged_packet_is_a_message_or_a_protocol_error(packet, data):
    damaged = bytearray(packet)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        match data.draw(st.sampled_from(["change", "insert", "delete", "repeat"])):
            case "change":
                damaged[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "insert":
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "delete":
                del damaged[at : at + data.draw(st.integers(1, 9))]
            case "repeat":
                damaged += damaged[at:]
    assert_message_or_protocol_error(bytes(damaged))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_packet_that_was_cut_short_or_runs_on_is_refused(message):
    packet = encode(message)
    for length in range(len(packet)):
        with pytest.raises(ProtocolError, match="is not msgpack"):
            decode(packet[:length])
    with pytest.raises(ProtocolError, match="is not msgpack"):
        decode(packet + b"\xc0")
    with pytest.raises(ProtocolError, match="is not msgpack"):
        decode(packet + packet)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_field_of_another_type_is_refused_by_name(message):
    values = msgpack.unpackb(encode(message))
    for place, field in enumerate(dataclasses.fields(message), start=1):
        for wrong in WRONG_OF_ANNOTATION[str(field.type)]:
            packet = msgpack.packb([*values[:place], wrong, *values[place + 1 :]])
            with pytest.raises(ProtocolError, match=rf"{type(message).__name__}\.{field.name} has a value"):
                decode(packet)


@pytest.mark.parametrize(
    "raw",
    [None, 1, "Hello", b"\x01", {}, {1: 2}, [], [None], ["1"], [True], [1.0], [[1]], [{}], [-1], [0], [9], [1 << 63]],
    ids=repr,
)
def test_what_does_not_begin_with_a_known_number_is_refused(raw):
    with pytest.raises(ProtocolError, match=r"message number|is not msgpack"):
        decode(msgpack.packb(raw))


HUGE = {
    "array16": b"\xdc\xff\xff",
    "array32": b"\xdd\xff\xff\xff\xff",
    "map16": b"\xde\xff\xff",
    "map32": b"\xdf\xff\xff\xff\xff",
    "str32": b"\xdb\xff\xff\xff\xff",
    "bin32": b"\xc6\xff\xff\xff\xff",
    "ext32": b"\xc9\xff\xff\xff\xff\x05",
}


@pytest.mark.parametrize("around", [b"", b"\x92\x0f", b"\x92\x15", b"\x92\x15\x91"], ids=bytes.hex)
@pytest.mark.parametrize("declared", HUGE.values(), ids=HUGE)
def test_a_huge_declared_length_is_refused_without_the_memory_for_it(declared, around):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="is not msgpack"):
            decode(around + declared + b"\x01" * 100)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", [100, 600, 5000, MAX_PACKET_BYTES // 2 - 3])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa0"], ids=["arrays", "maps"])
def test_deep_nesting_is_refused(opening, depth):
    deep = opening * depth + b"\xc0"
    for packet in (deep, b"\x92\x0c" + deep, b"\x93\x15" + deep + b"\x90", b"\x93\x15\x90\x91" + deep):
        with pytest.raises(ProtocolError):
            decode(packet[:MAX_PACKET_BYTES])
    assert_message_or_protocol_error(b"\x92\x0f" + deep)  # where newer fields are ignored


@pytest.mark.parametrize("code", [0, 5, -1, 127, -128])
@pytest.mark.parametrize("size", [0, 1, 4, 8, 12, 300])
def test_extension_types_are_no_field(code, size):
    extension = msgpack.packb(msgpack.ExtType(code & 0x7F, b"\0" * size))
    extension = extension.replace(bytes([code & 0x7F]), bytes([code & 0xFF]), 1) if code < 0 else extension
    with pytest.raises(ProtocolError):
        decode(extension)
    with pytest.raises(ProtocolError):
        decode(b"\x92\x0c" + extension)


@pytest.mark.parametrize("size", [1, 4, 300])
def test_extension_types_are_refused_even_where_newer_fields_would_be_ignored(size):
    with pytest.raises(ProtocolError, match="is not msgpack"):
        decode(b"\x92\x0f" + msgpack.packb(msgpack.ExtType(5, b"\0" * size)))


def test_a_timestamp_is_no_field():
    with pytest.raises(ProtocolError):
        decode(b"\x92\x0c" + msgpack.packb(msgpack.Timestamp(1, 2)))


@pytest.mark.parametrize(
    "packet",
    [
        b"\x92\x0f\xa2\xff\xfe",  # a string that is not UTF-8
        b"\x92\x0f\xc1",  # a byte that msgpack never uses
        b"\x92\x0f\x81\x01\x02",  # a map whose key is a number
        b"\x92\x0f\x81\x90\x02",  # a map whose key is an array
        b"\x92\x0f\x81\x80\x02",  # a map whose key is a map
    ],
    ids=bytes.hex,
)
def test_nested_garbage_is_refused_even_where_newer_fields_would_be_ignored(packet):
    with pytest.raises(ProtocolError, match="is not msgpack"):
        decode(packet)


def test_a_packet_beyond_the_limit_is_refused_whatever_is_in_it():
    longest = b"\x92\x0f\xda" + (MAX_PACKET_BYTES - 5).to_bytes(2, "big") + b"x" * (MAX_PACKET_BYTES - 5)
    assert len(longest) == MAX_PACKET_BYTES
    assert decode(longest) == Goodbye()
    with pytest.raises(ProtocolError, match="more than 65536 bytes"):
        decode(b"\x93" + longest[1:] + b"\xc0")


# --- sockets and descriptors ---


def open_fds() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.fixture
def pair():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


@pytest.fixture
def files(tmp_path):
    """Descriptors of distinct files, inheritable as a careless sender might have them."""
    fds = []
    for i in range(MAX_PACKET_FDS + 4):
        fd = os.open(tmp_path / str(i), os.O_RDWR | os.O_CREAT)
        os.set_inheritable(fd, True)
        os.write(fd, b"%d" % i)
        fds.append(fd)
    yield fds
    close_all(fds)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_messages_arrive_as_they_were_sent(pair, message):
    send(pair[0], message)
    assert receive(pair[1]) == message
    send(pair[1], message)
    assert receive_with_fds(pair[0]) == (message, [])


def test_packets_keep_their_bounds(pair):
    send(pair[0], Ready("first"))
    send(pair[0], Goodbye())
    assert receive(pair[1]) == Ready("first")
    assert receive(pair[1]) == Goodbye()


@pytest.mark.parametrize("count", range(MAX_PACKET_FDS + 1))
def test_descriptors_arrive_in_order_and_close_on_exec(pair, files, count):
    send(pair[0], Program("p", 1), files[:count])
    message, received = receive_with_fds(pair[1])
    try:
        assert message == Program("p", 1)
        assert len(received) == count
        assert [os.pread(fd, 9, 0) for fd in received] == [b"%d" % i for i in range(count)]
        assert not set(received) & set(files)
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received)
    finally:
        close_all(received)


def test_close_all_closes_what_came(pair, files):
    before = open_fds()
    send(pair[0], Goodbye(), files[:3])
    _, received = receive_with_fds(pair[1])
    assert len(open_fds()) == len(before) + 3
    close_all(received)
    assert open_fds() == before


@pytest.mark.parametrize("packet", [b"\xc1", b"\x91\x00", b"\x91\x01", encode(Goodbye())[:-1], b"\x92\x0c\xa1x"])
def test_the_descriptors_of_a_bad_message_are_closed(pair, files, packet):
    before = open_fds()
    socket.send_fds(pair[0], [packet], files[:MAX_PACKET_FDS])
    with pytest.raises(ProtocolError):
        receive_with_fds(pair[1])
    assert open_fds() == before


@given(packet=st.binary(min_size=1, max_size=60) | st.sampled_from(VALID), count=st.integers(0, MAX_PACKET_FDS))
@tries(150)
@example(packet=encode(Goodbye()), count=1)
def test_no_packet_leaves_a_descriptor_that_nobody_owns(packet, count):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        before = open_fds()
        socket.send_fds(left, [packet], [left.fileno()] * count)
        try:
            message, received = receive_with_fds(right)
        except ProtocolError:
            pass
        else:
            assert isinstance(message, Message)
            assert len(received) == count
            close_all(received)
        assert open_fds() == before


@pytest.mark.parametrize("extra", [1, 2, 4])
def test_more_descriptors_than_allowed_are_a_protocol_error_and_all_are_closed(pair, files, extra):
    before = open_fds()
    socket.send_fds(pair[0], [encode(Program("p", 1))], files[: MAX_PACKET_FDS + extra])
    with pytest.raises(ProtocolError, match="truncated"):
        receive_with_fds(pair[1])
    assert open_fds() == before


def test_a_packet_longer_than_the_limit_is_a_protocol_error_and_its_descriptors_are_closed(pair, files):
    for length in (MAX_PACKET_BYTES + 1, MAX_PACKET_BYTES + 2, 2 * MAX_PACKET_BYTES):
        before = open_fds()
        socket.send_fds(pair[0], [b"\0" * length], files[:2])
        with pytest.raises(ProtocolError):
            receive_with_fds(pair[1])
        assert open_fds() == before
        pair[0].send(b"\0" * length)
        with pytest.raises(ProtocolError, match="more than 65536"):
            receive(pair[1])


def test_the_longest_packet_passes(pair):
    room = MAX_PACKET_BYTES - len(encode(Output(1, "x" * 40_000))) + 40_000
    for get in (receive, lambda sock: receive_with_fds(sock)[0]):
        send(pair[0], Output(1, "x" * room))
        assert get(pair[1]) == Output(1, "x" * room)


def test_descriptors_that_were_not_asked_for_are_dropped(pair, files):
    before = open_fds()
    send(pair[0], Goodbye(), files[:2])
    assert receive(pair[1]) == Goodbye()
    assert open_fds() == before


def test_end_of_file_is_none(pair):
    send(pair[0], Goodbye())
    pair[0].close()
    assert receive(pair[1]) == Goodbye()
    assert receive(pair[1]) is None
    assert receive_with_fds(pair[1]) == (None, [])


def test_an_empty_packet_brings_no_descriptor_that_nobody_expects(pair, files):
    """A packet of no bytes reads like an end of file; its descriptors must not be left to a caller who is told
    (None, []) and stops there."""
    before = open_fds()
    socket.send_fds(pair[0], [b""], files[:2])
    with contextlib.suppress(ProtocolError):
        assert receive_with_fds(pair[1]) == (None, [])
    assert open_fds() == before


def test_a_message_that_is_too_long_is_not_sent(pair):
    with pytest.raises(ProtocolError):
        send(pair[0], Output(1, "x" * MAX_PACKET_BYTES))
    pair[0].close()
    assert receive(pair[1]) is None


def test_an_empty_socket_that_does_not_block_raises_blocking_io_error(pair):
    pair[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(pair[1])
    with pytest.raises(BlockingIOError):
        receive_with_fds(pair[1])
