"""The verdict of a soak: whatever grows is told, and noise is not."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.soak import GROWTH_MB, WARM_UP, Sample, judge

FIELDS = [field.name for field in dataclasses.fields(Sample)[1:]]


def flat(count: int) -> list[Sample]:
    return [Sample(number * 1000, *(20 for _ in FIELDS)) for number in range(count)]


def test_what_stays_as_it_was_is_well(capsys):
    assert judge(flat(WARM_UP + 30))
    assert "GREW" not in capsys.readouterr().out


@pytest.mark.parametrize("field", FIELDS)
def test_whatever_grows_is_found(field, capsys):
    step = (GROWTH_MB + 1) / 20 if field.endswith("_mb") else 1
    found = [dataclasses.replace(each, **{field: 20 + step * number}) for number, each in enumerate(flat(WARM_UP + 30))]
    assert not judge(found)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "GREW" in line]
    assert field in line


def test_a_run_that_is_too_short_shows_nothing():
    assert not judge(flat(WARM_UP))
