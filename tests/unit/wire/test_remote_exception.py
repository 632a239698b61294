"""A worker's exception on its way: it always fits the message that carries it, and its ends survive."""

from __future__ import annotations

import contextlib
import dataclasses

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import MAX_PACKET_BYTES, decode, encode
from prefetchd.wire.messages import BatchFailed, FillFailed, LoadFailed, StreamFailed
from prefetchd.wire.remote_exception import (
    PICKLE_LIMIT_BYTES,
    TEXT_LIMIT,
    RemoteException,
    decode_exception,
    encode_exception,
)
from tests.budgets import tries
from tests.unit.wire.golden.examples import EXCEPTION

WIDEST = 1 << 63
CHARACTERS = ["x", "\0", "é", "€", "\N{GRINNING FACE}", "\ud800"]

texts = st.text(max_size=20) | st.builds(
    lambda char, times, end: char * times + end,
    st.sampled_from(CHARACTERS),
    st.integers(0, 40_000),
    st.text(max_size=9),
)


def carriers(error: bytes) -> list:
    """Every message that takes an exception along, with the largest numbers there are."""
    return [
        BatchFailed(WIDEST, WIDEST, WIDEST, error),
        FillFailed(WIDEST, error),
        StreamFailed("stream_failed", "the program of stream 'train' did not load", error),
        LoadFailed("No module named 'foo'", error),
    ]


@given(st.builds(RemoteException, *[st.text(max_size=300)] * 4, st.binary(max_size=300)))
@tries(100)
def test_an_exception_of_usual_size_round_trips(exception):
    assert decode_exception(encode_exception(exception)) == exception


@pytest.mark.parametrize("field", ["message", "traceback", "location", "type_name"])
@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_one_text_of_a_million_characters_fits_one_packet(field, character):
    long = dataclasses.replace(EXCEPTION, **{field: character * 1_000_000}, pickled=b"p" * PICKLE_LIMIT_BYTES)
    for carrier in carriers(encode_exception(long)):
        assert decode(encode(carrier)) == carrier


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_a_long_message_and_traceback_fit_one_packet_with_the_longest_pickle(character):
    text = character * 1_000_000
    long = RemoteException("module.Error", text, text, "sample 17", b"p" * PICKLE_LIMIT_BYTES)
    for carrier in carriers(encode_exception(long)):
        assert decode(encode(carrier)) == carrier


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_all_texts_may_be_long_at_once(character):
    text = character * 1_000_000
    error = encode_exception(RemoteException(text, text, text, text, b"p" * PICKLE_LIMIT_BYTES))
    assert len(error) < MAX_PACKET_BYTES
    for carrier in carriers(error):
        assert decode(encode(carrier)) == carrier


@given(st.builds(RemoteException, texts, texts, texts, texts, st.integers(0, 20_000).map(bytes)))
@tries(60)
def test_whatever_the_texts_the_exception_fits_one_packet(exception):
    carrier = BatchFailed(WIDEST, WIDEST, WIDEST, encode_exception(exception))
    assert decode(encode(carrier)) == carrier


def test_a_message_of_a_megabyte_keeps_its_beginning_and_end_and_tells_what_is_missing():
    message = "begin " + "x" * (1 << 20) + " end"
    kept = decode_exception(encode_exception(dataclasses.replace(EXCEPTION, message=message)))
    assert kept.message.startswith("begin xxx")
    assert kept.message.endswith("xxx end")
    assert "characters left out" in kept.message
    told = int(kept.message.split("\n... ")[1].split(" ", 1)[0])
    marker = f"\n... {told} characters left out ...\n"
    assert len(kept.message) - len(marker) + told == len(message)
    assert dataclasses.replace(kept, message=EXCEPTION.message) == EXCEPTION


def test_a_text_that_fits_is_left_alone():
    for text in ("x" * (TEXT_LIMIT // 2), "é" * (TEXT_LIMIT // 4)):
        kept = decode_exception(encode_exception(dataclasses.replace(EXCEPTION, traceback=text)))
        assert kept.traceback == text


def test_a_long_pickle_is_left_out_whole():
    longest = dataclasses.replace(EXCEPTION, pickled=b"p" * PICKLE_LIMIT_BYTES)
    assert decode_exception(encode_exception(longest)).pickled == longest.pickled
    longer = dataclasses.replace(EXCEPTION, pickled=b"p" * (PICKLE_LIMIT_BYTES + 1))
    assert decode_exception(encode_exception(longer)) == dataclasses.replace(EXCEPTION, pickled=b"")


def test_text_that_is_no_utf_8_arrives_readable():
    kept = decode_exception(encode_exception(dataclasses.replace(EXCEPTION, message="file 'tr\udce4in.jpg'")))
    assert kept.message == "file 'tr?in.jpg'"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_exception(EXCEPTION)[:-1],
        encode_exception(EXCEPTION) + b"\0",
        msgpack.packb(None),
        msgpack.packb(5),
        msgpack.packb([]),
        msgpack.packb(["a", "b", "c"]),
        msgpack.packb(["a", "b", "c", "d", b"e", "f"]),
    ],
    ids=repr,
)
def test_damaged_bytes_are_refused(data):
    with pytest.raises(ProtocolError, match="damaged"):
        decode_exception(data)


@pytest.mark.parametrize(
    "raw",
    ["abcde", [1, 2, 3, 4, b""], ["a", "b", "c", "d", "text"], [b"a", "b", "c", "d", b""], dict.fromkeys("abcd")],
    ids=repr,
)
def test_fields_of_another_type_are_refused(raw):
    """The trainer unpickles one of them and shows the others."""
    with pytest.raises(ProtocolError):
        decode_exception(msgpack.packb(raw))


@given(st.binary(max_size=60))
@tries(100)
def test_random_bytes_are_an_exception_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode_exception(data), RemoteException)
