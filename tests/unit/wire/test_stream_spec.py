"""A stream's specification: every bad field is named, newer fields are ignored, and nothing is taken on trust."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.stream_spec import (
    LENGTH_LIMIT,
    MINIMUM_SLOTS,
    MINIMUM_SLOTS_DEVICE,
    ON_ERROR,
    ORDER_VERSION,
    ORDERS,
    SEED_LIMIT,
    SEED_SOURCES,
    STORES,
    StreamSpec,
    decode_spec,
    encode_spec,
)
from tests.budgets import tries
from tests.unit.wire.golden.examples import BARE_SPEC, FINGERPRINT, SPEC

FIELDS = [field.name for field in dataclasses.fields(StreamSpec)]
REQUIRED = ["fingerprint", "seed", "order", "length", "batch_size"]
COUNT = st.integers(0, 1 << 31)


@st.composite
def specs(draw: st.DrawFn) -> StreamSpec:
    world_size = draw(st.integers(1, 1 << 31))
    high = draw(COUNT)
    order = draw(st.sampled_from(ORDERS))
    store = draw(st.sampled_from(STORES))
    return StreamSpec(
        fingerprint=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        seed=draw(st.integers(0, SEED_LIMIT - 1)),
        order=order,
        length=draw(st.integers(0 if order in ("sequential", "shuffle") else -1, LENGTH_LIMIT)),
        batch_size=draw(st.integers(-1 if order == "sampler" else 0, LENGTH_LIMIT)),
        drop_last=draw(st.booleans()),
        rank=draw(st.integers(0, world_size - 1)),
        world_size=world_size,
        drop_uneven=draw(st.booleans()),
        logical_shards=draw(st.integers(1 if order == "iterable" else 0, 1 << 31)),
        on_error=draw(st.sampled_from(ON_ERROR)),
        name=draw(st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=200)),
        seed_source=draw(st.sampled_from(SEED_SOURCES)),
        buffer_bytes=draw(st.integers(0, 1 << 62)),
        buffer_batches=draw(st.integers(0, 1 << 62)),
        epoch_steps=draw(st.integers(0, 1 << 62)),
        minimum_slots=draw(st.integers(1, 1 << 16)),
        low_watermark=draw(st.integers(0, high or 1 << 31)),
        high_watermark=high,
        lookback=draw(COUNT),
        workers=draw(COUNT),
        dealt=draw(st.booleans()),
        timeout_s=draw(st.floats(0, 1e12)),
        store=store,
        directory="" if store == "shm" else draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=600)),
        epochs=draw(COUNT),
        remote_workers=draw(COUNT),
        remote_resources=draw(st.sampled_from(["", '{"fast_disk": 0.5}'])),
    )


@given(specs())
@tries(150)
def test_a_spec_round_trips(spec):
    assert decode_spec(encode_spec(spec)) == spec


BAD = {
    "fingerprint": ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "é" * 32],
    "seed": [-1, SEED_LIMIT, (1 << 64) - 1],
    "order": ["", "random", "Shuffle"],
    "length": [-2, LENGTH_LIMIT + 1],
    "batch_size": [-1, LENGTH_LIMIT + 1],
    "order_version": [0, ORDER_VERSION + 1, -1],
    "rank": [-1, SPEC.world_size],
    "world_size": [0, -1, (1 << 31) + 1],
    "logical_shards": [-1, (1 << 31) + 1],
    "on_error": ["", "ignore"],
    "name": ["x" * 201, "a\nb", "\0", "\x7f", "\ud800"],
    "seed_source": ["", "numpy"],
    "buffer_bytes": [-1, (1 << 62) + 1],
    "buffer_batches": [-1, (1 << 62) + 1],
    "epoch_steps": [-1, (1 << 62) + 1],
    "minimum_slots": [0, -1, (1 << 16) + 1],
    "low_watermark": [-1, (1 << 31) + 1, SPEC.high_watermark + 1],
    "high_watermark": [-1, (1 << 31) + 1],
    "lookback": [-1, (1 << 31) + 1],
    "workers": [-1, (1 << 31) + 1],
    "timeout_s": [-1.0, -1e-9, float("-inf")],
    "store": ["", "disk", "shm"],
    "directory": ["", "/" * 601],
    "epochs": [-1, (1 << 31) + 1],
    "remote_workers": [-1, (1 << 31) + 1],
    "remote_resources": ["[]", '{"CPU": 1}', "x" * 3000],
}
bad_fields = pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values], ids=ascii
)


def test_every_field_that_can_be_bad_is_tried():
    assert set(FIELDS) - set(BAD) == {"drop_last", "drop_uneven", "equal_epochs", "dealt", "private"}


@bad_fields
def test_a_bad_value_is_the_caller_s_error_and_its_field_is_named(field, value):
    with pytest.raises(CallerError, match=field) as raised:
        dataclasses.replace(SPEC, **{field: value})
    assert "allowed" in str(raised.value) or "knows" in str(raised.value)


@bad_fields
def test_a_bad_value_in_bytes_is_a_protocol_error_and_its_field_is_named(field, value):
    data = msgpack.packb(dataclasses.asdict(SPEC) | {field: value}, unicode_errors="surrogatepass")
    with pytest.raises(ProtocolError, match=f"{field}|not msgpack"):
        decode_spec(data)


@pytest.mark.parametrize("name", ["rank", "length", "seed", "minimum_slots", "buffer_bytes", "timeout_s"])
def test_the_error_tells_what_was_given(name):
    value = -5.0 if name == "timeout_s" else -5
    with pytest.raises(CallerError, match=rf"{name} is -5"):
        dataclasses.replace(SPEC, **{name: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 0},
        {"seed": SEED_LIMIT - 1},
        {"length": -1, "order": "iterable"},
        {"length": 0},
        {"length": LENGTH_LIMIT},
        {"batch_size": 0},
        {"rank": 0},
        {"rank": SPEC.world_size - 1},
        {"minimum_slots": 1},
        {"minimum_slots": 1 << 16},
        {"low_watermark": SPEC.high_watermark},
        {"high_watermark": 0, "low_watermark": 1 << 31},
        {"name": ""},
        {"name": "é" * 200},
        {"timeout_s": 0.0},
        *({"order": order} for order in ORDERS),
        *({"on_error": choice} for choice in ON_ERROR),
        *({"seed_source": source} for source in SEED_SOURCES),
    ],
    ids=repr,
)
def test_the_ends_of_each_range_are_allowed(changes):
    spec = dataclasses.replace(SPEC, equal_epochs=False, **changes)
    assert decode_spec(encode_spec(spec)) == spec


def test_the_smallest_rings_are_what_the_design_says():
    assert (MINIMUM_SLOTS, MINIMUM_SLOTS_DEVICE) == (4, 6)
    assert BARE_SPEC.minimum_slots == MINIMUM_SLOTS


# --- older and newer sides ---


def test_fields_of_a_newer_writer_are_ignored():
    newer = {"a_new_field": [1, {"x": None}], "another": "é"}
    assert decode_spec(msgpack.packb(newer | dataclasses.asdict(SPEC))) == SPEC


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_an_older_writer_leaves_out_has_its_default_or_is_named(field):
    known = dataclasses.asdict(BARE_SPEC)
    del known[field]
    if field in REQUIRED:
        with pytest.raises(ProtocolError, match=field):
            decode_spec(msgpack.packb(known))
    else:
        assert decode_spec(msgpack.packb(known)) == BARE_SPEC


def test_the_order_of_the_fields_does_not_matter():
    assert decode_spec(msgpack.packb(dict(reversed(dataclasses.asdict(SPEC).items())))) == SPEC


# --- wrong types ---

WRONG = {
    int: [None, True, 1.0, "1", b"1", [1], {}],
    str: [None, 1, True, b"shuffle", ["shuffle"], {}],
    bool: [None, 0, 1, "true", b"", []],
    float: [None, True, "1.0", b"1", [1.0]],
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_another_type_is_refused_and_its_field_is_named(field):
    for wrong in WRONG[type(getattr(SPEC, field))]:
        with pytest.raises(ProtocolError, match=field):
            decode_spec(msgpack.packb(dataclasses.asdict(SPEC) | {field: wrong}))


@pytest.mark.parametrize("raw", [None, 1, "spec", b"spec", [], [["seed", 1]], True, 1.5], ids=repr)
def test_what_is_no_map_is_refused(raw):
    with pytest.raises(ProtocolError, match="allowed: a map"):
        decode_spec(msgpack.packb(raw))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", encode_spec(SPEC)[:-1], encode_spec(SPEC) + b"\0", b"\x81\x01\x02", b"\xdf\xff\xff\xff\xff"],
    ids=["nothing", "no msgpack", "cut short", "more", "a number as key", "a huge map"],
)
def test_damaged_bytes_are_refused(data):
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode_spec(data)


@given(st.binary(max_size=60))
@tries(100)
def test_random_bytes_are_no_spec(data):
    with pytest.raises(ProtocolError):
        decode_spec(data)


@given(st.data())
@tries(200)
def test_a_damaged_spec_is_a_spec_or_a_protocol_error(data):
    damaged = bytearray(encode_spec(SPEC))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        spec = decode_spec(bytes(damaged))
    except ProtocolError:
        return
    assert encode_spec(decode_spec(encode_spec(spec))) == encode_spec(spec)


def test_a_whole_number_of_seconds_is_a_timeout():
    """DataLoader(timeout=5) has an int, and mypy allows an int where a float is wanted."""
    spec = dataclasses.replace(BARE_SPEC, timeout_s=5)
    assert decode_spec(encode_spec(spec)).timeout_s == 5


def test_a_timeout_that_is_no_number_is_refused():
    with pytest.raises(CallerError, match="timeout_s"):
        dataclasses.replace(BARE_SPEC, timeout_s=float("nan"))


def test_a_spec_is_a_value():
    spec = StreamSpec(FINGERPRINT, 0, "sequential", 10, 4)
    assert spec == BARE_SPEC
    assert hash(spec) == hash(BARE_SPEC)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.seed = 1
