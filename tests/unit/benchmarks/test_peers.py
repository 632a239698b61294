"""benchmarks.peers: what adds up, what a contestant says and is held to, and what is pinned."""

from __future__ import annotations

import io
import re

import pytest
import torch

from benchmarks.peers import environments, report, results, usage
from benchmarks.peers.checks import Checked, NotAsAskedError, touch
from benchmarks.peers.contestants import CONTESTANTS, documentation
from benchmarks.peers.feeds import FEEDS, Data, Feed
from benchmarks.peers.job import Job
from benchmarks.peers.protocol import ProtocolError, last_word, parse, say
from benchmarks.peers.works import NAMES, work_module


def run(work: str, contestant: str, number: int, reason: str = "", **measures: float) -> results.Run:
    versions = {} if reason else {"torch": "2.14.1", "numpy": "2.4.6"}
    return results.Run(
        work, contestant, number, "2026-11-26", "a machine; load average 0.1", measures, versions, reason
    )


# --- figures ---


def test_a_figure_is_a_median_with_its_range():
    assert results.figure([3.0, 1.0, 2.0]).text(1) == "2.0 (1.0 to 3.0)"
    assert results.figure([1234.4, 1234.1]).text(0) == "1,234"


def test_there_is_no_figure_of_nothing():
    with pytest.raises(ValueError, match="no rounds"):
        results.figure([])


def test_runs_of_several_invocations_add_up(tmp_path):
    for number in (1, 2, 3):
        assert results.next_round(results.read(tmp_path), "tokens") == number
        results.add(tmp_path, run("tokens", "spdl", number, samples_per_s=100.0 * number))
    results.add(tmp_path, run("prepared", "spdl", 1, samples_per_s=7.0))
    kept = results.read(tmp_path)
    assert results.figures(kept, "tokens", "samples_per_s")["spdl"] == results.Figure(200.0, 100.0, 300.0, 3)
    assert results.next_round(kept, "prepared") == 2


def test_a_round_that_failed_does_not_count_and_one_that_always_fails_has_its_reason():
    runs = [run("tokens", "spdl", 1, "broken"), run("tokens", "spdl", 2, samples_per_s=5.0)]
    assert results.figures(runs, "tokens", "samples_per_s")["spdl"].rounds == 1
    assert results.reasons(runs, "tokens") == {}
    assert results.reasons(runs[:1], "tokens") == {"spdl": "broken"}


# --- the report ---


def test_the_report_has_all_contestants_and_says_who_failed():
    text = report.tables([run("tokens", "dataloader", 1, samples_per_s=5.0), run("tokens", "spdl", 1, "broken")])
    for about in CONTESTANTS.values():
        assert text.count(f"\n| {about.title} |") == 2, about.title
    assert "SPDL failed in tokens: broken." in text
    assert "Rounds: 1." in text
    assert text.count(report.NOT_YET) == len(NAMES) - 1
    assert "Measured on 2026-11-26: a machine." in text


def test_the_measured_part_is_replaced_and_nothing_else():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nbehind\n"
    replaced = report.with_tables(page, "new")
    assert report.measured_part(replaced) == "new"
    assert replaced.startswith("before\n")
    assert replaced.endswith("\nbehind\n")
    with pytest.raises(ValueError, match="once each"):
        report.with_tables("no marks", "new")


# --- the protocol ---


def test_what_is_said_is_read_and_what_others_print_is_not():
    stream = io.StringIO()
    say(stream, "ready")
    stream.write('a package\'s own line\n{"event": "other"}\n[1]\n')
    say(stream, "result", measures={"samples_per_s": 1.0}, versions={})
    lines = stream.getvalue().splitlines()
    assert [parse(line) is not None for line in lines] == [True, False, False, False, True]
    assert last_word(lines)["measures"] == {"samples_per_s": 1.0}


def test_an_end_without_a_result_is_an_error():
    with pytest.raises(ProtocolError):
        last_word(['{"event": "ready"}'])
    with pytest.raises(ValueError, match="there are ready"):
        say(io.StringIO(), "else")


def test_a_job_comes_out_as_it_went_in(tmp_path):
    job = Job("spdl", "tokens", Data(tmp_path, tmp_path / "made"), "mark", 1.5, trainer=1, role="trainer")
    assert Job.from_json(job.to_json()) == job


# --- the checks ---

FEED = Feed("jpeg-bytes", 4, (3, 8, 8), "uint8", 16)


def batch(count: int = 4, dtype: torch.dtype = torch.uint8) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    return pixels.to(dtype), torch.zeros(count, dtype=torch.int64)


def test_what_was_asked_for_passes():
    assert sum(len(samples) for samples, _ in Checked([batch()] * 4, FEED)) == 16


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([batch(3)], "asked for"),
        ([batch(dtype=torch.float32)], "asked for uint8"),
        ([(batch()[0], batch()[1].int())], "labels"),
        ([(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), batch()[1])], "no pictures"),
        ([batch()], "an epoch of 4"),
        ([batch()] * 5, "an epoch of 20"),
    ],
)
def test_what_was_not_asked_for_is_found(batches, words):
    with pytest.raises(NotAsAskedError, match=words):
        list(Checked(batches, FEED))


def test_each_page_is_touched_whatever_the_order_in_memory():
    planes = torch.ones(4, 3, 64, 64, dtype=torch.uint8)
    assert touch(planes) == touch(planes.to(memory_format=torch.channels_last)) == 4 * 3 * 64 * 64 // 4096


# --- what is used ---


def test_pss_is_read_from_a_rollup():
    assert usage.pss_kib("00-ff ---p [rollup]\nRss:  20 kB\nPss:  12 kB\nPss_Anon: 3 kB\n") == 12
    assert usage.pss_kib("") == 0


def test_cpu_time_of_who_ended_is_its_parents_and_an_orphans_is_left_out():
    before = {10: (1, 100), 11: (10, 40), 20: (1, 300)}
    # 11 has ended, and 10 has waited for it; 20 has ended as a child of init.
    assert usage.cpu_between(before, {10: (1, 145), 30: (10, 7)}) == 145 + 7 - 100 - 40
    assert usage.cpu_between(before, {10: (1, 100), 11: (10, 41), 20: (1, 302)}) == 3


# --- contestants, works and pins ---


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_contestant_names_what_advises_its_set_up_and_has_a_venv(name):
    about = CONTESTANTS[name]
    assert re.search(r"https://|docs/", documentation(name))
    assert about.venv in environments.names()
    assert set(about.cannot) <= set(NAMES)
    assert all(about.cannot.values())


def test_every_file_is_a_contestant():
    directory = environments.ROOT / "benchmarks" / "peers" / "contestants"
    assert {path.stem for path in directory.glob("*.py")} - {"__init__"} == set(CONTESTANTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_work_says_what_it_is(name):
    work = work_module(name).WORK
    assert work.feed in FEEDS
    assert work.what.endswith(".")
    assert len({column.measure for column in work.columns}) == len(work.columns)


@pytest.mark.parametrize("venv", environments.names())
def test_all_that_is_installed_is_pinned(venv):
    lines = (environments.REQUIREMENTS / f"{venv}.txt").read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line), line


def test_base_is_made_first_and_a_venv_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.names()[0] == environments.BASE
    with pytest.raises(environments.NotSetUpError, match=r"benchmarks\.peers setup"):
        environments.python_of("spdl")
