"""The golden pieces, and the text that keeps them: a file a format, in it each piece's name and a hex dump.

A piece's dump begins at its offset in the format that it is part of, so the places are pinned with the bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefetchd.wire import framing, program_layout, remote_exception, segment_layout, slot_layout, stream_spec
from tests.unit.wire.golden import examples

DIRECTORY = Path(__file__).parent
BYTES_A_LINE = 16


@dataclasses.dataclass(frozen=True)
class Piece:
    """One value with its bytes: `encode(value)` must be what is stored, `decode(stored)` must be `value`."""

    name: str
    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    offset: int = 0


def _messages() -> list[Piece]:
    full = [Piece(type(each).__name__, each, framing.encode, framing.decode) for each in examples.MESSAGES]
    bare = [
        Piece(f"{type(each).__name__} with defaults", each, framing.encode, framing.decode)
        for each in examples.BARE_MESSAGES
    ]
    return full + bare


def _segment() -> list[Piece]:
    header = examples.HEADER
    records = [
        Piece(
            f"record of slot {slot}",
            record,
            segment_layout.encode_slot_record,
            segment_layout.decode_slot_record,
            header.slot_record_offset(slot),
        )
        for slot, record in enumerate(examples.SLOT_RECORDS)
    ]
    return [
        Piece(
            "header",
            header,
            segment_layout.encode_header,
            lambda data: segment_layout.decode_header(data, header.segment_bytes),
        ),
        Piece(
            "reserved slots",
            examples.RESERVED_SLOTS,
            segment_layout.RESERVED_SLOTS.pack,
            lambda data: segment_layout.RESERVED_SLOTS.unpack(data)[0],
            segment_layout.RESERVED_SLOTS_OFFSET,
        ),
        *records,
        Piece(
            "offers",
            examples.OFFERS,
            lambda offers: b"".join(map(segment_layout.OFFER.pack, offers)),
            lambda data: tuple(offer for (offer,) in segment_layout.OFFER.iter_unpack(data)),
            header.offers_offset,
        ),
        Piece(
            "record of consumer 1",
            examples.CONSUMER_RECORD,
            segment_layout.encode_consumer_record,
            segment_layout.decode_consumer_record,
            header.consumer_record_offset(1),
        ),
        Piece(
            "marks of consumer 1",
            examples.MARKS,
            lambda marks: b"".join(map(segment_layout.MARK.pack, marks)),
            lambda data: tuple(mark for (mark,) in segment_layout.MARK.iter_unpack(data)),
            header.mark_offset(1, 0),
        ),
    ]


def _slot_payload() -> list[Piece]:
    return [
        Piece("meta", examples.PAYLOAD_META, slot_layout.encode_meta, slot_layout.decode_meta),
        Piece("row layout", examples.ROW_LAYOUT, slot_layout.encode_row_layout, slot_layout.decode_row_layout),
    ]


def _program() -> list[Piece]:
    layout = examples.PROGRAM
    entries = list(zip(layout.buffer_offsets, layout.buffer_sizes))
    return [
        Piece("head", layout, program_layout.encode_head, _decode_program_head),
        Piece(
            "environment",
            examples.ENVIRONMENT,
            program_layout.encode_environment,
            program_layout.decode_environment,
            layout.environment_offset,
        ),
        Piece(
            "buffer table",
            entries,
            lambda _: program_layout.encode_table(layout),
            lambda data: list(program_layout.BUFFER_ENTRY.iter_unpack(data)),
            layout.table_offset,
        ),
    ]


def _decode_program_head(head: bytes) -> program_layout.ProgramLayout:
    """The stored head with the rest of the segment after it: a head cannot be decoded alone."""
    layout = examples.PROGRAM
    segment = bytearray(layout.program_bytes)
    segment[: len(head)] = head
    table = program_layout.encode_table(layout)
    segment[layout.table_offset : layout.table_offset + len(table)] = table
    return program_layout.decode_program(memoryview(segment))


def _stream_spec() -> list[Piece]:
    return [
        Piece("spec", examples.SPEC, stream_spec.encode_spec, stream_spec.decode_spec),
        Piece("spec with defaults", examples.BARE_SPEC, stream_spec.encode_spec, stream_spec.decode_spec),
    ]


def _remote_exception() -> list[Piece]:
    return [
        Piece("exception", examples.EXCEPTION, remote_exception.encode_exception, remote_exception.decode_exception)
    ]


FORMATS: dict[str, list[Piece]] = {
    "messages": _messages(),
    "segment": _segment(),
    "slot_payload": _slot_payload(),
    "program": _program(),
    "stream_spec": _stream_spec(),
    "remote_exception": _remote_exception(),
}


def path_of(format_name: str) -> Path:
    return DIRECTORY / f"{format_name}.txt"


def render(format_name: str) -> str:
    """The text of the format's file, from what the code encodes today."""
    parts = ["# Written by: python -m tests.unit.wire.golden.regenerate\n"]
    parts += [f"\n{piece.name}\n{_dump(piece.encode(piece.value), piece.offset)}" for piece in FORMATS[format_name]]
    return "".join(parts)


def read(format_name: str) -> dict[str, tuple[int, bytes]]:
    """Name to (offset, bytes) of each stored piece."""
    found: dict[str, tuple[int, bytes]] = {}
    for block in path_of(format_name).read_text("utf-8").split("\n\n")[1:]:
        name, *lines = block.strip("\n").split("\n")
        rows = [(int(line[2:10], 16), bytes.fromhex(line[12:59])) for line in lines]
        offset = rows[0][0]
        data = b""
        for at, row in rows:
            assert at == offset + len(data), f"{format_name}: {name}: a line is missing before {at:08x}"
            data += row
        assert name not in found, f"{format_name}: {name} is there twice"
        found[name] = (offset, data)
    return found


def _dump(data: bytes, offset: int) -> str:
    lines = []
    for i in range(0, len(data), BYTES_A_LINE):
        row = data[i : i + BYTES_A_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"  {offset + i:08x}  {row.hex(' '):47}  |{text}|\n")
    return "".join(lines)
