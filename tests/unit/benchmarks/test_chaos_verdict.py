"""The verdict of a chaos run: whatever is wrong in a journal is found, and what was not shown is no success."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks.chaos import declared
from benchmarks.chaos.daemon_watch import Death
from benchmarks.chaos.report import fates_of_rings, shortfalls
from benchmarks.chaos.rings import ReadyBatch, ready_of
from benchmarks.chaos.verdict import Oracle, Samples, Trail, recomputed
from benchmarks.chaos.work import NOTE, WORKS
from prefetchd.kill_points.kill_point_table import POINTS
from prefetchd.wire.batch_file import file_name
from prefetchd.wire.segment_layout import (
    CONSUMERS,
    OFFER,
    PAGE_BYTES,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    SLOT_READY,
    SPEC_OFFSET,
    ConsumerRecord,
    SegmentHeader,
    SlotRecord,
    encode_consumer_record,
    encode_slot_record,
)
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from tests.scenario.oracle import SAMPLE, derive

ALONE, LOOKS_BACK, SMALL, FIRST, SECOND = (
    next(work for work in WORKS if work.name == name)
    for name in ("small ring", "larger ring", "whole batches", "first of two", "second of two")
)
ORACLE = Oracle()


def batch(epoch, step, at=1.0, work=ALONE, content=None):
    """The line of a batch, with the content of that one or of another."""
    found = ORACLE.digest(work, content or (epoch, step))
    return {"at": at, "what": "batch", "digest": found, "waited_s": 0.0, "state": {"epoch": epoch, "step": step + 1}}


def run(first, end):
    return [batch(0, step) for step in range(first, end)]


def moved(what, epoch, step):
    return {"at": 1.0, "what": what, "state": {"epoch": epoch, "step": step}}


def trail_of(tmp_path, lines, work=ALONE):
    journal = tmp_path / f"{work.name}.journal"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trail = Trail(work, journal, ORACLE)
    trail.read_on()
    return trail


def test_a_journal_without_a_fault(tmp_path):
    whole = [*run(0, ALONE.steps), moved("end", 1, 0), batch(1, 0), moved("break", 2, 0), batch(2, 0)]
    trail = trail_of(tmp_path, [*whole, moved("back", 1, 5), batch(1, 5)])
    assert not trail.wrongs
    assert trail.batches == ALONE.steps + 3


TORN = {**batch(0, 3), "digest": "0" * 24}


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([*run(0, 3), *run(4, 6)], "lost"),
        ([*run(0, 3), moved("end", 1, 0), batch(1, 0)], "lost"),
        ([*run(0, ALONE.steps), moved("end", 2, 0), batch(2, 0)], "lost"),
        ([*run(0, 3), moved("break", 2, 0), batch(2, 0)], "lost"),
        ([*run(0, ALONE.steps), moved("end", 0, 0), *run(0, 2)], "repeated"),
        ([*run(0, 4), *run(3, 6)], "repeated"),
        ([*run(0, 3), batch(0, 3, content=(0, 4)), *run(4, 6)], "reordered"),
        ([*run(0, 3), batch(0, 3, content=(1, 3)), *run(4, 6)], "reordered"),
        ([*run(0, 3), TORN, *run(4, 6)], "torn"),
        ([*run(0, 3), {"at": 1.0, "what": "changed", "digest": "0" * 24}], "changed"),
        ([*run(0, 3), {"at": 1.0, "what": "error", "text": "ValueError"}], "error"),
    ],
)
def test_each_fault_is_found_once(tmp_path, lines, kind):
    trail = trail_of(tmp_path, lines)
    assert trail.wrongs == {kind: 1}
    assert f"small ring: {kind}: " in trail.wrong[0]


# --- made again though ready ---

SEEN_S, DIED_S, MADE_S = 9.9, 10.0, 12.0


FORMER, NEXT = 7, 8


def judge(tmp_path, trails, work=ALONE, stops=(), made_s=MADE_S, served=(), killed=(), by=NEXT):
    """What becomes of batch 2 of epoch 0, ready when the daemon died, a sample of which was made again."""
    seed = derive(work.seed, SAMPLE, 0, 2 * work.batch_size + 1) >> 1
    notes = tmp_path / "samples"
    notes.write_bytes(NOTE.pack(seed, int(1e9), FORMER) + NOTE.pack(seed, int(made_s * 1e9), by))
    ready = {ReadyBatch(work.seed, 0, 2)}
    deaths = [Death(SEEN_S, DIED_S, ready)]
    again, excused, asked = recomputed(deaths, list(served), list(stops), dict(killed), Samples(notes), trails)
    return len(again), excused, asked


def test_a_batch_that_is_made_again_is_found(tmp_path):
    assert judge(tmp_path, [trail_of(tmp_path, run(0, 2))]) == (1, 0, 1)


def test_what_its_trainer_did_meanwhile_is_told(tmp_path):
    lines = [batch(0, 0, 9.0), batch(0, 1, 11.0), {"at": 11.5, "what": "closed"}, {"at": 13.0, "what": "closed"}]
    told = trail_of(tmp_path, lines).between(10.0, 12.0)
    assert told == "; small ring: 0 begins, 1 closes, 0 resets, from (0, 2) to (0, 2)"


def test_a_batch_that_was_made_before_the_death_is_not(tmp_path):
    assert judge(tmp_path, [trail_of(tmp_path, run(0, 2))], made_s=DIED_S - 1) == (0, 0, 1)


def test_what_a_worker_of_the_dead_daemon_still_makes_is_not(tmp_path):
    """It was at that when the daemon died. Found by a run whose only fault it was."""
    assert judge(tmp_path, [trail_of(tmp_path, run(0, 2))], by=FORMER) == (0, 0, 1)


@pytest.mark.parametrize(("at_s", "excused"), [(11.0, 1), (9.95, 1), (9.0, 0), (13.0, 0)])
def test_only_what_lies_between_is_a_reason(tmp_path, at_s, excused):
    life = trail_of(tmp_path, [{"at": at_s, "what": "life", "life": 2}])
    assert judge(tmp_path, [life]) == (1 - excused, excused, 1)
    assert judge(tmp_path, [trail_of(tmp_path, run(0, 2))], stops=[at_s]) == (1 - excused, excused, 1)


@pytest.mark.parametrize(("at_s", "excused"), [(11.0, 1), (9.0, 0), (13.0, 0)])
def test_what_a_trainer_that_is_killed_was_handed_is_made_again_before_it_is_back(tmp_path, at_s, excused):
    killed = trail_of(tmp_path, [{"at": 1.0, "what": "life", "life": 1, "pid": 5}, batch(0, 0, 9.0, FIRST)], FIRST)
    assert judge(tmp_path, [killed], FIRST, killed={5: at_s, 6: 11.0}) == (1 - excused, excused, 1)
    looks_back = trail_of(tmp_path, [{"at": 1.0, "what": "life", "life": 1, "pid": 5}], LOOKS_BACK)
    assert judge(tmp_path, [looks_back], LOOKS_BACK, killed={5: at_s}) == (1, 0, 1)


def test_another_stream_s_beginning_is_no_reason(tmp_path):
    other = trail_of(tmp_path, [{"at": 11.0, "what": "life", "life": 2}], FIRST)
    assert judge(tmp_path, [other]) == (1, 0, 1)


@pytest.mark.parametrize(("served_s", "excused"), [(11.5, 1), (10.5, 0)])
def test_a_loader_that_is_closed_without_a_daemon_takes_its_ring_with_it(tmp_path, served_s, excused):
    closed = trail_of(tmp_path, [{"at": 11.0, "what": "closed"}], LOOKS_BACK)
    assert judge(tmp_path, [closed], LOOKS_BACK, served=[1.0, served_s]) == (1 - excused, excused, 1)


def test_with_a_lookback_a_new_life_is_no_reason(tmp_path):
    begun = [{"at": 11.0, "what": "life", "life": 2}, {"at": 11.0, "what": "loader", "took_s": 0.1}]
    assert judge(tmp_path, [trail_of(tmp_path, begun, LOOKS_BACK)], LOOKS_BACK) == (1, 0, 1)
    for reset in ({"at": 11.0, "what": "fresh"}, {**moved("back", 0, 1), "at": 11.0}):
        assert judge(tmp_path, [trail_of(tmp_path, [*begun, reset], LOOKS_BACK)], LOOKS_BACK) == (0, 1, 1)


@pytest.mark.parametrize(("lines", "excused"), [([], 0), ([{"at": 9.0, "what": "fresh"}], 1)])
def test_who_was_killed_while_it_asked_for_another_ring_may_have_been_heard(tmp_path, lines, excused):
    """By the next daemon: it asks that one too."""
    trail = trail_of(tmp_path, [*lines, {"at": 11.0, "what": "life", "life": 2}], LOOKS_BACK)
    assert judge(tmp_path, [trail], LOOKS_BACK) == (1 - excused, excused, 1)


def test_of_two_consumers_one_was_far_behind(tmp_path):
    ahead = trail_of(tmp_path, [batch(0, step, 11.0, FIRST) for step in range(3)], FIRST)
    behind = trail_of(tmp_path, [batch(0, 0, 11.0, SECOND)], SECOND)
    assert judge(tmp_path, [ahead, behind], FIRST) == (0, 1, 1)
    assert judge(tmp_path, [behind], FIRST) == (1, 0, 1)


def test_that_its_only_consumer_had_it_is_no_reason(tmp_path):
    for work in (ALONE, LOOKS_BACK):
        lines = [*(batch(0, step, 11.0, work) for step in range(3)), batch(0, 3, 12.5, work)]
        assert judge(tmp_path, [trail_of(tmp_path, lines, work)], work) == (1, 0, 1)


# --- files ---


def test_files_ahead_of_the_trainer_are_ready_and_all_else_is_left_over(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    half = "." + file_name((1, 5)) + ".4d.tmp"
    for name in ("stream.json", half, *map(file_name, [(0, 19), (1, 3), (1, 4), (2, 0)])):
        (files / name).touch()
    (tmp_path / "progress").write_text("1\n4\n")
    seed = next(work.seed for work in WORKS if work.files)
    assert declared.ready_files(tmp_path) == {ReadyBatch(seed, 1, 4), ReadyBatch(seed, 2, 0)}
    assert declared.left_over(tmp_path) == sorted([half, file_name((0, 19)), file_name((1, 3))])


# --- what was not shown ---

EVERY_POINT = Counter(dict.fromkeys(POINTS, 10))


@pytest.mark.parametrize(
    ("wanted", "hits", "kills", "judged", "taken", "told"),
    [
        (1000, EVERY_POINT, 1000, 18000, 18000, []),
        (30, Counter(), 30, 540, 540, []),
        (30, Counter(), 29, 500, 500, ["29 of 30 kills"]),
        (30, Counter(), 30, 0, 540, ["0 batches are in the journals, 540 were taken"]),
        (30, Counter(), 30, 700, 700, ["too few kills for 700 batches"]),
        (1000, EVERY_POINT - Counter(["worker.started"]), 1000, 18000, 18000, ["1 points were hit too rarely"]),
    ],
)
def test_what_was_not_shown_is_no_success(wanted, hits, kills, judged, taken, told):
    assert shortfalls(wanted, hits, kills, judged, taken) == told


# --- what counts as ready ---


def ring(work, slots=8, offers=(), yielded=(5,), lookback=0):
    """What the head of a ring says in which batches 5, 6... of epoch 0 are ready; consumers have `yielded` so far."""
    spec = StreamSpec("0" * 32, work.seed, "shuffle", work.length, work.batch_size, lookback=lookback)
    encoded = encode_spec(spec)
    header = SegmentHeader(slots, PAGE_BYTES, 1, 1, "0" * 32, 0, len(encoded), "/program")
    data = bytearray(header.payload_offset)
    data[SPEC_OFFSET : SPEC_OFFSET + len(encoded)] = encoded
    RESERVED_SLOTS.pack_into(data, RESERVED_SLOTS_OFFSET, slots)
    for slot in range(slots):
        record = encode_slot_record(SlotRecord(SLOT_READY, 1, 10 + slot, 0, 5 + slot))
        at = header.slot_record_offset(slot)
        data[at : at + len(record)] = record
    for slot, offer in enumerate(offers):
        OFFER.pack_into(data, header.offers_offset + slot * OFFER.size, offer)
    for consumer, step in enumerate(yielded):
        record = encode_consumer_record(ConsumerRecord(1, 1, 0, step, step))
        at = header.consumer_record_offset(consumer)
        data[at : at + len(record)] = record
    return bytes(data), header


def steps_ready(data, header, living):
    return {batch.step for batch in ready_of(data, header, living)}


def test_what_a_living_consumer_comes_to_within_its_share_is_ready():
    assert steps_ready(*ring(ALONE), {0}) == set(range(5, 13))
    assert steps_ready(*ring(ALONE, lookback=3), {0}) == set(range(5, 10))
    assert steps_ready(*ring(ALONE), set()) == set()


def test_who_has_not_looked_at_a_shared_ring_yet_has_a_share_of_it():
    """Found by a run whose only fault it was."""
    assert steps_ready(*ring(FIRST), {0}) == set(range(5, 9))


def test_what_one_of_several_may_have_as_it_is_is_its_own():
    copied, owned = 1, 1 << CONSUMERS
    offers = (copied, owned, copied)
    assert steps_ready(*ring(FIRST, offers=offers, yielded=(5, 5)), {0, 1}) == {5, 7, 8}
    assert steps_ready(*ring(ALONE, offers=offers), {0}) == set(range(5, 13))


def life(at_s):
    return {"at": at_s, "what": "life", "life": 2}


@pytest.mark.parametrize(("after", "excused"), [([life(13.0)], 1), ([], 1), ([batch(0, 3, 12.5)], 0)])
def test_what_was_yielded_is_made_again_for_a_run_that_begins_again_while_nobody_is_there(tmp_path, after, excused):
    trail = trail_of(tmp_path, [*(batch(0, step, 11.0) for step in range(3)), *after])
    assert judge(tmp_path, [trail]) == (1 - excused, excused, 1)


@pytest.mark.parametrize(("after", "excused"), [([life(13.0)], 1), ([], 1), ([batch(1, 0, 12.5)], 0)])
def test_what_an_epoch_that_was_broken_off_left_is_made_again_for_a_run_that_begins_again(tmp_path, after, excused):
    """Found by a run whose only fault it was."""
    trail = trail_of(tmp_path, [batch(0, 0, 11.0), {**moved("break", 1, 0), "at": 11.0}, *after])
    assert judge(tmp_path, [trail]) == (1 - excused, excused, 1)


@pytest.mark.parametrize(
    ("closed_s", "begun_s", "taken_s", "excused"),
    [(11.9, 11.95, 12.5, 1), (11.9, 11.95, 11.97, 0), (9.0, 9.1, 12.5, 0)],
    ids=["before its first batch", "after that", "long before"],
)
def test_what_was_claimed_while_a_loader_was_closed_may_be_made_when_the_next_has_come(
    tmp_path, closed_s, begun_s, taken_s, excused
):
    """Found by a run whose only fault it was: 7 ms after the next loader had come, of a stream with a lookback."""
    lines = [batch(0, 0, 11.0, LOOKS_BACK), {**moved("break", 1, 0), "at": 11.1}]
    lines += [{"at": closed_s, "what": "closed"}, {"at": begun_s, "what": "loader", "took_s": 0.1}]
    lines += [batch(1, 0, taken_s, LOOKS_BACK), batch(1, 1, 12.6, LOOKS_BACK)]
    trail = trail_of(tmp_path, lines, LOOKS_BACK)
    assert judge(tmp_path, [trail], LOOKS_BACK, served=[1.0, 10.5]) == (1 - excused, excused, 1)


@pytest.mark.parametrize(
    ("work", "stood", "excused"),
    [(LOOKS_BACK, 0, 0), (LOOKS_BACK, 2, 0), (SMALL, 2, 0), (SMALL, 0, 1)],
    ids=["in its half", "next", "next of a small ring", "in the other half"],
)
def test_what_lies_further_ahead_than_half_of_the_ring_makes_room(tmp_path, work, stood, excused):
    lines = [*(batch(0, step, 1.0, work) for step in range(stood)), life(11.0), batch(0, stood, 12.5, work)]
    assert judge(tmp_path, [trail_of(tmp_path, lines, work)], work) == (1 - excused, excused, 1)


def test_the_daemon_s_log_tells_what_became_of_rings(tmp_path):
    log = tmp_path / "daemon.log"
    lines = [json.dumps({"event": event}) for event in ("ring adopted", "worker died", "stream replaced")]
    log.write_text("\n".join(lines) + "\nFatal Python error\n")
    assert fates_of_rings(log) == [lines[0], lines[2]]
    assert fates_of_rings(None) == []


def test_a_loader_that_resumes_after_the_last_batch_begins_the_next_epoch(tmp_path):
    whole = run(0, ALONE.steps)
    resumed = trail_of(tmp_path, [*whole, {"at": 1.0, "what": "closed"}, LOADER, batch(1, 0)])
    assert not resumed.wrong
    assert trail_of(tmp_path, [*whole, batch(1, 0)]).wrongs == {"lost": 1}


LOADER = {"at": 1.0, "what": "loader", "took_s": 0.1, "fresh": False}
