"""Reports and comparisons, from examples of the status."""

from __future__ import annotations

import json

import pytest

from prefetchd.dashboard.comparison import comparison
from prefetchd.dashboard.report import MOST_BYTES, report, report_page, shortened
from prefetchd.dashboard.series import Series
from prefetchd.status.snapshot import Report
from prefetchd.status.status_object import status_object
from prefetchd.wire.errors import CallerError
from tests.unit.cli import examples
from tests.unit.cli.examples import stream

ABOUT = {"versions": {"prefetchd": "0.1.0"}, "findings": []}


def series(stalled: float | None, points: int = 60) -> Series:
    found = Series()
    for at in range(points):
        found.add((1000.0 + 10 * at, 0.5, 4.0, 3.0, stalled, 2, 1 << 30, "waiting"))
    return found


def reported(*streams, only="", points=None, ended=None, state="running", about=ABOUT):
    status = status_object(examples.report(*streams, state=state))
    return report(status, points or {}, ended or {}, stream=only, socket="/run/d.sock", made_unix_s=2000.0, about=about)


def last_of(name: str) -> dict:
    return status_object(examples.report(stream(name=name, consumers=[])))["streams"][0]


def test_report_of_a_running_stream_has_the_verdict_of_status():
    found = reported(stream(), points={"train.py:0": series(0.3)})
    expected = status_object(examples.report(stream()))["streams"][0]["verdict"]
    assert found["details"]["train.py:0"]["status"]["verdict"] == expected
    assert expected["answer"] in found["headline"]["text"]
    assert len(found["details"]["train.py:0"]["history"]) == 60


def test_report_of_a_run_that_has_ended_answers_from_its_history():
    found = reported(points={"train": series(0.2)}, ended={"train": last_of("train")})
    assert found["details"]["train"]["ended"] is True
    assert found["headline"]["word"] == "Yes"
    assert "waited 20%; with data always ready it would have run 1.25x as fast" in found["headline"]["text"]


def test_report_without_a_daemon_is_made_of_the_history():
    found = report(
        status_object(Report("absent")),
        {"train": series(0.0)},
        {"train": last_of("train")},
        stream="train",
        socket="/s",
        made_unix_s=1.0,
        about=ABOUT,
    )
    assert found["headline"]["word"] == "No"
    assert found["ended"] == ["train"]


def test_report_of_one_stream_leaves_the_others_out():
    found = reported(stream(name="a"), stream(name="b"), only="b")
    assert [each["name"] for each in found["streams"]] == ["b"]
    assert list(found["details"]) == ["b"]
    with pytest.raises(KeyError):
        reported(stream(name="a"), only="c")


def test_report_of_many_streams_is_thinned_out_until_it_fits():
    names = [f"stream {number}" for number in range(200)]
    found = reported(*(stream(name=name) for name in names), points={name: series(0.1, 300) for name in names})
    page = report_page(found, "report")
    assert len(page.encode()) <= MOST_BYTES
    assert all(name in page for name in names)


def test_short_paths_keep_the_last_part_alone():
    found = shortened({"text": "open '/home/eva/secret/x.py' or /data/imagenet/train: 3/4 of it", "n": [1, None]})
    assert found == {"text": "open 'x.py' or train: 3/4 of it", "n": [1, None]}


def test_environment_is_in_no_report(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "precious-key")
    assert "precious-key" not in json.dumps(reported(stream()))


def test_comparison_shows_streams_of_the_same_name_side_by_side():
    slow = reported(stream(), points={"train.py:0": series(0.5)})
    fast = reported(stream(), points={"train.py:0": series(0.0)}, about={**ABOUT, "versions": {"prefetchd": "0.2.0"}})
    found = comparison(slow, fast, ("before.json", "after.json"))
    rows = {what: values for _, what, *values in found["compare"]["rows"]}
    assert rows["mean share of time waited"] == ["50.0%", "0.0%"]
    assert rows["prefetchd"] == ["0.1.0", "0.2.0"]
    assert list(found["details"]) == ["A: train.py:0", "B: train.py:0"]


def test_comparison_pairs_the_only_streams_of_two_reports():
    found = comparison(reported(stream(name="old")), reported(stream(name="new")), ("a", "b"))
    assert found["compare"]["rows"][0][0] == "old"


@pytest.mark.parametrize("wrong", [None, [], {}, {"details": {}}, {"details": [], "report": {}}])
def test_comparison_of_what_is_no_report_is_refused(wrong):
    with pytest.raises(CallerError, match=r"b\.json is no report"):
        comparison(reported(stream()), wrong, ("a.json", "b.json"))
