"""The formats are what they were: stored bytes are read, and what is written is the stored bytes.

A test here fails when a format changes. If that is meant, raise the format's version where old bytes are no longer
read, and run `python -m tests.unit.wire.golden.regenerate`.
"""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.wire.messages import MESSAGE_TYPES
from tests.unit.wire.golden import examples, formats

PIECES = [
    pytest.param(name, piece, id=f"{name}: {piece.name}")
    for name, pieces in formats.FORMATS.items()
    for piece in pieces
]


@pytest.mark.parametrize(("format_name", "piece"), PIECES)
def test_writes_the_stored_bytes_at_the_stored_place(format_name, piece):
    offset, stored = formats.read(format_name)[piece.name]
    assert piece.encode(piece.value) == stored
    assert piece.offset == offset


@pytest.mark.parametrize(("format_name", "piece"), PIECES)
def test_reads_the_stored_bytes(format_name, piece):
    _, stored = formats.read(format_name)[piece.name]
    assert piece.decode(stored) == piece.value


@pytest.mark.parametrize("format_name", formats.FORMATS)
def test_the_files_are_what_regenerate_writes(format_name):
    assert formats.path_of(format_name).read_text("utf-8") == formats.render(format_name)


def test_no_file_is_left_of_a_format_that_is_gone():
    assert {path.stem for path in formats.DIRECTORY.glob("*.txt")} == set(formats.FORMATS)


def test_every_message_has_a_golden_example():
    assert {type(each) for each in examples.MESSAGES} == set(MESSAGE_TYPES.values())


@pytest.mark.parametrize("value", [*examples.MESSAGES, examples.SPEC, examples.HEADER], ids=lambda v: type(v).__name__)
def test_examples_leave_no_optional_field_at_its_default(value):
    """Else a field that is not written at all would go unnoticed."""
    only_known_values = {"order_version", "store"}
    for field in dataclasses.fields(value):
        if field.default is not dataclasses.MISSING and field.name not in only_known_values:
            assert getattr(value, field.name) != field.default, field.name
