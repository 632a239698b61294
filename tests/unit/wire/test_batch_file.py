"""The format of batch files: names that sort, headers that safetensors reads, descriptions with a version."""

from __future__ import annotations

import json

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from prefetchd.wire.batch_file import (
    ALIGNMENT,
    EPOCHS_LIMIT,
    FORMAT_VERSION,
    decode_header,
    describe_stream,
    encode_header,
    error_name,
    failed_position_of,
    file_name,
    is_temporary,
    position_of,
    read_description,
    temporary_name,
)
from prefetchd.wire.errors import ProtocolError
from tests.unit.wire.golden.examples import SPEC

POSITIONS = st.tuples(st.integers(0, 999_999), st.integers(0, 99_999_999))


@given(st.lists(POSITIONS))
def test_sorted_by_name_they_are_in_order(positions):
    assert [position_of(name) for name in sorted(map(file_name, positions))] == sorted(positions)


@given(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)))
def test_a_name_tells_the_position(position):
    assert position_of(file_name(position)) == position
    assert failed_position_of(error_name(position)) == position
    assert is_temporary(temporary_name(position, 1 << 60))
    assert position_of(temporary_name(position, 0)) is position_of(error_name(position)) is None


@pytest.mark.parametrize(
    "name",
    ["", "notes.txt", "epoch1-batch2.safetensors", "epoch0000001-batch00000002.safetensors", "x" + file_name((1, 2))]
    + [file_name((1, 2)) + ".bak", "epoch-00001-batch00000002.safetensors", ".tmp", "stream.json"],
)
def test_other_names_are_nobodys(name):
    assert position_of(name) is None
    assert not is_temporary(name)
    assert failed_position_of(name) is None


def test_a_header_is_aligned_and_read_back_and_by_safetensors():
    header = encode_header([("a", "F32", (2, 3), 24), ("ü", "U8", (), 1)], {"stream": "träin"})
    assert len(header) % ALIGNMENT == 0
    data = header + bytes(25)
    table, metadata, begin = decode_header(memoryview(data))
    assert begin == len(header)
    assert metadata == {"stream": "träin"}
    assert table["ü"] == {"dtype": "U8", "shape": [], "data_offsets": [24, 25]}
    assert {name for name, _ in safetensors.deserialize(data)} == {"a", "ü"}


@pytest.mark.parametrize("cut", [0, 4, 8, 30, 100, 150])
def test_what_is_cut_short_is_refused(cut):
    data = encode_header([("a", "F32", (2, 3), 24)], {}) + bytes(24)
    with pytest.raises(ProtocolError):
        decode_header(data[: min(cut, len(data) - 1)])


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"a": 3}', b'{"a": {"data_offsets": [0, 90]}}', b'{"a": {"b": 1}}'])
def test_a_header_of_something_else_is_refused(text):
    with pytest.raises(ProtocolError):
        decode_header(len(text).to_bytes(8, "little") + text)


def test_a_description_is_read_back():
    found = read_description(describe_stream(SPEC, 20, 1 << 30, 4096))
    assert found == {
        "format": FORMAT_VERSION,
        "stream": SPEC.name,
        "fingerprint": SPEC.fingerprint,
        "samples": SPEC.length,
        "batch_size": SPEC.batch_size,
        "batches_an_epoch": 20,
        "epochs": 90,
        "names": "epoch{epoch:06}-batch{batch:08}.safetensors",
        "seed": SPEC.seed,
        "order": SPEC.order,
        "rank": SPEC.rank,
        "world_size": SPEC.world_size,
        "bound_bytes": 1 << 30,
        "place_bytes": 4096,
    }
    assert found["names"].format(epoch=1, batch=2) == file_name((1, 2))


def test_the_last_epoch_s_files_are_the_last_by_name():
    assert file_name((EPOCHS_LIMIT - 2, 7)) < file_name((EPOCHS_LIMIT - 1, 0))
    assert not file_name((EPOCHS_LIMIT - 1, 7)) < file_name((EPOCHS_LIMIT, 0))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", json.dumps({"format": 1}).encode()])
def test_a_description_of_another_format_is_refused(text):
    with pytest.raises(ProtocolError):
        read_description(text)
