"""docs/formats.md says what the code does: its tables read the golden bytes, its Python plans the same batches."""

from __future__ import annotations

import ast
import json
import re
import struct
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.plan.order import SMALL, Permutation
from prefetchd.plan.seeds import SUBSTITUTES, batch_seed, order_key, worker_seed
from prefetchd.wire import framing, program_layout, segment_layout, slot_layout, status_layout
from prefetchd.wire.batch_file import describe_stream
from prefetchd.wire.messages import PROTOCOL_VERSION
from prefetchd.wire.runtime_paths import SOCKET_PATH_LIMIT, runtime_paths
from prefetchd.wire.seed_words import device_seed
from prefetchd.wire.stream_spec import ORDER_VERSION, StreamSpec
from tests.budgets import tries
from tests.unit.docs.draw import DOCS
from tests.unit.wire.golden import examples

TEXT = (DOCS / "formats.md").read_text("utf-8")
TYPES = {"u16": "H", "u32": "I", "u64": "Q", "i64": "q"}


# --- tables of fields ---


def fields(section: str, heading: str) -> list[tuple[int, str, str]]:
    """(offset, struct code, name) of the table under a heading; reserved places have the name ""."""
    part = re.split(r"^## ", TEXT.split(f"\n## {section}\n")[1], flags=re.M)[0]
    table = part.split(f"**{heading}**\n\n")[1].split("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        offset, kind, name = (cell.strip() for cell in line.strip("|").split("|")[:3])
        text = re.fullmatch(r"char\[(\d+)\]", kind)
        found.append((int(offset), f"{text[1]}s" if text else TYPES[kind], name.strip("`") if "`" in name else ""))
    return found


def read(section: str, heading: str, data: bytes) -> dict[str, Any]:
    """What `data` says when it is read with the table alone."""
    found = {}
    end = 0
    for offset, code, name in fields(section, heading):
        assert offset == end, f"{heading}: the places before {name or 'reserved'} do not add up"
        end += struct.calcsize("<" + code)
        (value,) = struct.unpack_from("<" + code, data, offset)
        if name:
            found[name] = value.rstrip(b"\0").decode() if isinstance(value, bytes) else value
        else:
            assert value == 0
    return found


HEADER = examples.HEADER
PLACES = ("offers_offset", "consumer_records_offset", "marks_offset", "payload_offset", "segment_bytes")


def test_the_ring_s_header():
    assert read("Ring segment", "Header", segment_layout.encode_header(HEADER)) == {
        "magic": "PFDRING",
        "version": segment_layout.LAYOUT_VERSION,
        "header_bytes": segment_layout.HEADER_BYTES,
        "slots": HEADER.slots,
        "slot_bytes": HEADER.slot_bytes,
        "created_ns": HEADER.created_ns,
        "daemon_generation": HEADER.daemon_generation,
        "consumers": HEADER.consumers,
        "slot_record_bytes": segment_layout.SLOT_RECORD_BYTES,
        **{name: getattr(HEADER, name) for name in PLACES},
        "spec_bytes": HEADER.spec_bytes,
        "row_layout_bytes": HEADER.row_layout_bytes,
        "fingerprint": HEADER.fingerprint,
        "program_name": HEADER.program_name,
    }


def test_the_ring_s_areas():
    rows = dict(re.findall(r"^\| ([\d,]+) \| (\w[\w ]*\w)", TEXT.split("| offset | area | bytes |")[1], re.M)[:4])
    assert {int(offset.replace(",", "")): area for offset, area in rows.items()} == {
        0: "header",
        segment_layout.SPEC_OFFSET: "stream spec",
        segment_layout.ROW_LAYOUT_OFFSET: "row layout",
        segment_layout.SLOT_RECORDS_OFFSET: "slot records",
    }
    assert f"at most {segment_layout.ROW_LAYOUT_LIMIT_BYTES:,} |" in TEXT
    assert f"At offset {segment_layout.RESERVED_SLOTS_OFFSET} a u64" in TEXT
    assert f"at most {segment_layout.SLOTS_LIMIT:,} slots and {segment_layout.CONSUMERS} consumers" in TEXT


@pytest.mark.parametrize("record", examples.SLOT_RECORDS)
def test_a_slot_s_record(record):
    found = read("Ring segment", "Slot record", segment_layout.encode_slot_record(record))
    found["next_slot"] -= 1
    assert found == {name: getattr(record, name) for name in found}
    assert struct.calcsize(segment_layout.SLOT_RECORD.format) == segment_layout.SLOT_RECORD_BYTES


def test_a_consumer_s_record():
    record = examples.CONSUMER_RECORD
    found = read("Ring segment", "Consumer record", segment_layout.encode_consumer_record(record))
    assert found == {name: getattr(record, name) for name in found}
    assert list(found) == list(vars(record))


def test_the_locks_lie_where_they_should():
    assert segment_layout.DAEMON_LOCK_OFFSET == 1 << 62
    assert segment_layout.CONSUMER_LOCK_OFFSET == (1 << 62) + 4096
    assert segment_layout.WRITERS_LOCK_OFFSET == (1 << 62) + 65_536


def test_a_payload_s_tables():
    meta = examples.PAYLOAD_META
    data = slot_layout.encode_meta(meta)
    section = "Payload of a slot"
    assert read(section, "Head", data) == {
        "magic": slot_layout.MAGIC,
        "version": slot_layout.LAYOUT_VERSION,
        "payload_bytes": meta.payload_bytes,
        "meta_bytes": meta.meta_bytes,
        "storages": len(meta.storages),
        "views": len(meta.views),
        "skeleton_bytes": len(meta.skeleton),
    }
    at = slot_layout.HEAD.size
    for entry in meta.storages:
        assert read(section, "Storage entry", data[at:]) == vars(entry)
        at += slot_layout.STORAGE_ENTRY.size
    for view in meta.views:
        found = read(section, "View entry", data[at:])
        dimensions = found.pop("dimensions")
        at += slot_layout.VIEW_HEAD.size
        numbers = struct.unpack_from(f"<{2 * dimensions}q", data, at)
        at += 16 * dimensions
        assert found | {"shape": numbers[:dimensions], "stride": numbers[dimensions:]} == vars(view)
    assert data[at:] == meta.skeleton


def test_the_dtypes_codes():
    (told,) = re.findall(r"^dtype codes, from 0: (.*?)\.$", TEXT, re.M | re.S)
    assert tuple(told.replace("\n", " ").split(", ")) == slot_layout.DTYPES


def test_the_program_s_head():
    layout = examples.PROGRAM
    assert read("Program segment", "Head", program_layout.encode_head(layout)) == {
        "magic": "PFDPROG",
        "version": program_layout.LAYOUT_VERSION,
        "environment_bytes": layout.environment_bytes,
        "pickle_bytes": layout.pickle_bytes,
        "buffers": len(layout.buffer_sizes),
        "program_bytes": layout.program_bytes,
    }


def test_the_status_s_head():
    head = status_layout.StatusHead(4321, 6, 1_234_567_890_123, 1)
    assert read("Status segment", "Head", status_layout.encode_head(head)) == {
        "magic": "PFDSTAT",
        "version": status_layout.LAYOUT_VERSION,
        **vars(head),
    }


# --- numbers in the text ---


def test_versions_and_limits_in_the_text():
    assert f"at most {framing.MAX_PACKET_BYTES:,} bytes" in TEXT
    assert f"Up to {framing.MAX_PACKET_FDS} file descriptors" in TEXT
    assert f"the protocol number is the same, which is {PROTOCOL_VERSION}" in TEXT
    assert f"Version {ORDER_VERSION} (`order_version` in the spec)" in TEXT
    assert f"at most {SOCKET_PATH_LIMIT} bytes" in TEXT


def test_names_in_the_text(tmp_path):
    paths = runtime_paths(env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/home/u"})
    assert str(paths.socket) == f"{tmp_path}/prefetchd/v1/daemon.sock"
    assert str(paths.log) == "/home/u/.local/state/prefetchd/daemon.log"
    other = runtime_paths("/run/x.sock", {"HOME": "/home/u"})
    assert other.log.name == f"daemon-{other.instance}.log"
    assert (other.lock.name, other.start_lock.name) == ("x.sock.lock", "x.sock.start")
    assert other.segment_name("ring", "TOKEN") == f"/prefetchd-{other.instance}-ring-TOKEN"
    assert other.status_segment == f"/prefetchd-{other.instance}-status"


# --- order and seeds ---

(CODE,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
documented: dict[str, Any] = {}
exec(CODE, documented)

SEEDS = st.integers(0, (1 << 63) - 1)


def test_the_known_answers():
    table = TEXT.split("Known answers:")[1]
    answers = re.findall(r"^\| `(.+?)` \| (.+?) \|$", table, re.M)
    assert len(answers) == 8
    for expression, value in answers:
        assert eval(expression, dict(documented)) == ast.literal_eval(value), expression


@given(st.integers(0, (1 << 64) - 1), st.integers(1, 300) | st.integers(SMALL - 2, 1 << 62), st.data())
@tries(60)
def test_the_documented_permutation_is_the_plan_s(key, n, data):
    position = data.draw(st.integers(0, n - 1))
    assert documented["permuted"](key, n, position) == Permutation(key, n).at(position)


@given(SEEDS, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 20))
@tries(60)
def test_the_documented_seeds_are_the_plan_s(seed, epoch, step, rank):
    assert documented["batch_seed"](seed, epoch, step, rank) == batch_seed(seed, epoch, step, rank)
    assert documented["device_seed"](seed, epoch, step, rank) == device_seed(seed, epoch, step, rank)
    assert documented["derive"](seed, 3, epoch, 0) == order_key(seed, epoch)
    assert documented["worker_seed"](seed, step, rank) == worker_seed(seed, step, rank)


@given(SEEDS, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, SUBSTITUTES), st.integers(1, 1 << 40))
@tries(60)
def test_the_documented_substitutes_are_the_plan_s(seed, epoch, ordinal, attempt, length):
    found = BatchPlan(StreamSpec("0" * 32, seed, "shuffle", length, 4)).substitute(epoch, ordinal, attempt)
    assert documented["substitute"](seed, epoch, ordinal, attempt, length) == found
    assert f"attempt = 1, 2, ... {SUBSTITUTES}" in TEXT


@given(
    seed=SEEDS,
    shuffle=st.booleans(),
    length=st.integers(1, 120) | st.integers(SMALL + 1, 10**12),
    batch_size=st.integers(1, 9),
    epoch=st.integers(0, 5),
    world_size=st.integers(1, 4),
    drop_uneven=st.booleans(),
    data=st.data(),
)
@tries(60)
def test_a_documented_batch_is_the_plan_s(seed, shuffle, length, batch_size, epoch, world_size, drop_uneven, data):
    rank = data.draw(st.integers(0, world_size - 1))
    order = "shuffle" if shuffle else "sequential"
    spec = StreamSpec(
        "0" * 32, seed, order, length, batch_size, rank=rank, world_size=world_size, drop_uneven=drop_uneven
    )
    plan = BatchPlan(spec)
    if not plan.schedule.steps:
        return
    step = data.draw(st.sampled_from(sorted({0, plan.schedule.steps // 2, plan.schedule.steps - 1})))
    planned = plan.rows(epoch, step, 0, plan.schedule.rows(step))
    expected = list(zip(*(np.asarray(each).tolist() for each in (planned.indices, planned.ordinals, planned.seeds))))
    told = documented["batch"](seed, shuffle, length, batch_size, epoch, step, rank, world_size, drop_uneven)
    assert told == expected


# --- stream.json ---


def test_the_table_of_stream_json_has_its_keys():
    text = (DOCS / "batch-files.md").read_text("utf-8")
    table = text.split("\n`stream.json`:\n\n")[1].split("\n\n")[0]
    told = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(told) == sorted(json.loads(describe_stream(StreamSpec("0" * 32, 0, "sequential", 8, 4), 2, 1, 1)))
