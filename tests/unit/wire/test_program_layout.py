"""The program segment: parts in order, tables that agree, an environment that survives any bytes."""

from __future__ import annotations

import contextlib
import itertools

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from prefetchd.wire import program_layout as layout
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.program_layout import (
    BUFFER_ENTRY,
    HEAD,
    HEAD_BYTES,
    Environment,
    ProgramLayout,
    decode_environment,
    decode_program,
    encode_environment,
    encode_head,
    encode_table,
)
from prefetchd.wire.segment_layout import PAGE_BYTES
from tests.budgets import tries
from tests.unit.wire.golden.examples import ENVIRONMENT

small_layouts = st.builds(
    ProgramLayout,
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.lists(st.integers(0, 10_000), max_size=5).map(tuple),
)
large_layouts = st.builds(
    ProgramLayout,
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 50),
    st.lists(st.integers(0, 1 << 50), max_size=5).map(tuple),
)
any_path = st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


def segment_of(program: ProgramLayout) -> bytearray:
    segment = bytearray(program.program_bytes)
    segment[: HEAD.size] = encode_head(program)
    table = encode_table(program)
    segment[program.table_offset : program.table_offset + len(table)] = table
    return segment


@given(large_layouts)
@tries(150)
def test_parts_come_in_order_aligned_and_apart(program):
    assert HEAD.size <= HEAD_BYTES == program.environment_offset
    assert program.pickle_offset == program.environment_offset + program.environment_bytes
    assert program.table_offset == program.pickle_offset + program.pickle_bytes
    buffers = list(zip(program.buffer_offsets, program.buffer_sizes, strict=True))
    end = program.table_offset + BUFFER_ENTRY.size * len(buffers)
    for offset, size in buffers:
        assert offset % PAGE_BYTES == 0
        assert end <= offset < end + PAGE_BYTES
        end = offset + size
    assert end <= program.program_bytes < end + PAGE_BYTES
    assert program.program_bytes % PAGE_BYTES == 0


@given(small_layouts)
@tries(100)
def test_a_program_segment_round_trips(program):
    assert decode_program(memoryview(segment_of(program))) == program
    assert decode_program(memoryview(segment_of(program) + b"\0" * 10)) == program


@given(large_layouts)
@tries(50)
def test_the_table_tells_where_each_buffer_lies(program):
    assert list(BUFFER_ENTRY.iter_unpack(encode_table(program))) == list(
        zip(program.buffer_offsets, program.buffer_sizes, strict=True)
    )


def test_the_picture_tells_the_code_s_sizes():
    assert f"{HEAD_BYTES} bytes |" in layout.__doc__
    assert f"{BUFFER_ENTRY.size} bytes a buffer" in layout.__doc__
    places = [layout.__doc__.index(part) for part in ("head:", "environment,", "pickle (", "buffer table:", "buffer 0")]
    assert all(before < after for before, after in itertools.pairwise(places))


# --- damage ---

PROGRAM = ProgramLayout(100, 200, (5000, 1))
FIELDS = ("magic", "version", "pad", "environment bytes", "pickle bytes", "buffers", "program bytes")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"PFDPROH\0"),
        ("version", 0),
        ("version", 2),
        ("environment bytes", 0),
        ("environment bytes", 99),
        ("environment bytes", 1 << 20),
        ("environment bytes", (1 << 64) - 1),
        ("pickle bytes", 201),
        ("pickle bytes", (1 << 64) - 1),
        ("buffers", 0),
        ("buffers", 1),
        ("buffers", 1 << 20),
        ("buffers", (1 << 64) - 1),
        ("program bytes", 0),
        ("program bytes", PROGRAM.program_bytes - PAGE_BYTES),
        ("program bytes", PROGRAM.program_bytes + PAGE_BYTES),
    ],
)
def test_a_damaged_head_is_refused(field, value):
    segment = segment_of(PROGRAM)
    fields = list(HEAD.unpack_from(segment))
    fields[FIELDS.index(field)] = value
    HEAD.pack_into(segment, 0, *fields)
    with pytest.raises(ProtocolError):
        decode_program(memoryview(segment))


@pytest.mark.parametrize("size", [0, 4000, 1 << 20, (1 << 64) - 1])
def test_a_table_that_tells_another_size_is_refused(size):
    segment = segment_of(PROGRAM)
    BUFFER_ENTRY.pack_into(segment, PROGRAM.table_offset, PROGRAM.buffer_offsets[0], size)
    with pytest.raises(ProtocolError):
        decode_program(memoryview(segment))


@pytest.mark.parametrize("length", [0, 1, HEAD.size - 1, HEAD.size, HEAD_BYTES, PROGRAM.table_offset, -1])
def test_a_segment_that_was_cut_short_is_refused(length):
    with pytest.raises(ProtocolError):
        decode_program(memoryview(segment_of(PROGRAM))[:length])


@given(st.data())
@tries(200)
def test_a_damaged_segment_is_refused_or_lies_within_itself(data):
    segment = segment_of(PROGRAM)
    places = [*range(HEAD.size), *range(PROGRAM.table_offset, PROGRAM.table_offset + 2 * BUFFER_ENTRY.size)]
    for _ in range(data.draw(st.integers(1, 3))):
        segment[data.draw(st.sampled_from(places))] = data.draw(st.integers(0, 255))
    try:
        found = decode_program(memoryview(segment))
    except ProtocolError:
        return
    ends = [found.table_offset, *(at + size for at, size in zip(found.buffer_offsets, found.buffer_sizes))]
    assert max(ends) <= len(segment)


# --- environment ---

environments = st.builds(
    Environment,
    st.binary(max_size=30),
    st.lists(any_path, max_size=5).map(tuple),
    st.binary(max_size=30),
    st.dictionaries(st.binary(max_size=10), st.binary(max_size=20), max_size=6),
    st.lists(st.text(max_size=10), max_size=4).map(tuple),
    st.binary(max_size=32),
)


@given(environments)
@tries(150)
def test_an_environment_of_any_bytes_round_trips(environment):
    data = encode_environment(environment)
    assert decode_environment(data) == environment
    assert decode_environment(memoryview(data)) == environment


def test_an_environment_is_the_same_bytes_whatever_the_order_of_its_variables():
    backwards = dict(reversed(ENVIRONMENT.variables.items()))
    other = Environment(ENVIRONMENT.executable, ENVIRONMENT.sys_path, ENVIRONMENT.directory, backwards)
    here = Environment(ENVIRONMENT.executable, ENVIRONMENT.sys_path, ENVIRONMENT.directory, ENVIRONMENT.variables)
    assert list(other.variables) != list(here.variables)
    assert encode_environment(other) == encode_environment(here)


def test_the_variables_are_never_shown():
    environment = Environment(b"python", (), b"/", {b"AWS_SECRET": b"hunter2"}, authkey=b"open sesame")
    assert "hunter2" not in repr(environment)
    assert "sesame" not in repr(environment)
    assert "AWS_SECRET" not in f"{environment!r} {environment}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_environment(ENVIRONMENT)[:-1],
        encode_environment(ENVIRONMENT) + b"\0",
        msgpack.packb(None),
        msgpack.packb(7),
        msgpack.packb([]),
        msgpack.packb([b"", [], b"", {}]),
        msgpack.packb([b"", [], b"", {}, [], []]),
        msgpack.packb([b"", [], b"", {}, [], b"", b""]),
        msgpack.packb([b"", None, b"", {}, []]),
        msgpack.packb([b"", [], b"", {}, 5]),
        b"\x95\xc4\x00\x90\xc4\x00\x81\x90\x00\x90",
    ],
    ids=repr,
)
def test_a_damaged_environment_is_refused(data):
    with pytest.raises(ProtocolError, match="environment is damaged"):
        decode_environment(data)


@given(st.binary(max_size=60))
@tries(200)
def test_random_bytes_are_an_environment_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode_environment(data), Environment)
