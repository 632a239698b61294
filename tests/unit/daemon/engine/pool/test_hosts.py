"""The rules of hosts, one by one. What becomes of whole streams with them: tests/unit/daemon/test_forked_hosts.py."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.commands import (
    AskProgram,
    BindHost,
    DropHost,
    Identify,
    Log,
    Send,
    StartSpare,
    StartStream,
)
from prefetchd.daemon.engine.pool.hosts import EXECUTED_AFTER, SMALL_PROGRAM_BYTES, TRAINER_GONE_S, Hosts
from prefetchd.daemon.engine.stream.consumers import AbsentConsumer, Consumer
from prefetchd.daemon.engine.stream.failed_starts import LONGEST_PAUSE_S
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState
from prefetchd.processes.process_exit import KILLED, MOST_KILLS
from prefetchd.wire.messages import ForkWanted
from prefetchd.wire.stream_spec import UNIDENTIFIED
from tests.unit.daemon.engine.stream.rooms import SPEC, stream_of, walks, works

TRAINER, OTHER = 5, 6
OWN, FOREIGN = SPEC.fingerprint, "a" * 32
NOT_IDENTIFIED = dataclasses.replace(SPEC, fingerprint=UNIDENTIFIED)


class Bed:
    """A stream without a host, with something to fill; `stopped` are the hosts whose workers were."""

    def __init__(self, spec=SPEC) -> None:
        self.commands: list = []
        self.failures: list[str] = []
        self.stopped: list[Host] = []
        self.planners_stopped = 0
        self.stream = stream_of(4, self.commands, spec)
        self.stream.stage, self.stream.host = Stage.AWAITING_PROGRAM, None
        walks(self.stream.window)
        self.hosts = Hosts({1: self.stream}, self, self, self.commands, self._fail)

    def stop_workers(self, stream: StreamState, host: Host) -> None:
        self.stopped.append(host)

    def forget(self, stream: StreamState, *, stop: bool) -> None:
        assert stop
        self.planners_stopped += 1

    def _fail(self, stream: StreamState, code: str, text: str) -> None:
        self.failures.append(text)
        stream.failure = (code, text, b"")

    def consumed(self, session: int = TRAINER, *, forks: bool = True, has_program: bool = True) -> Consumer:
        consumer = self.stream.consumers[session] = Consumer(session, 100, session, 1, has_program, forks)
        return consumer

    def fork(self, fingerprint: str = OWN, *, session: int = TRAINER, serves: bool = True) -> Host:
        """A fork of the session's trainer that is given to the stream; its fingerprint is known, unless it is empty."""
        host = self.hosts.new_fork(session)
        self.hosts.give(self.stream, host)
        if serves:
            self.hosts.ready(host.number)
        if fingerprint:
            self.hosts.identified(host.number, fingerprint)
        return host

    def executed(self, *, serves: bool = True) -> Host:
        """A host that loads the program."""
        self.stream.has_program = True
        self.hosts.start(self.stream)
        host = self.stream.coming
        if serves:
            self.hosts.ready(host.number)
        return host

    def said(self, kind) -> list:
        return [each for each in self.commands if isinstance(each, kind)]

    @property
    def dropped(self) -> list[int]:
        return [each.host for each in self.said(DropHost)]

    @property
    def fork_wanted_of(self) -> list[int]:
        return [each.session for each in self.said(Send) if isinstance(each.message, ForkWanted)]


@pytest.fixture
def bed():
    return Bed()


# --- rule 1 ---


def test_rule_1_the_coming_host_serves_when_it_is_ready(bed):
    host = bed.executed(serves=False)
    assert (bed.stream.host, bed.stream.coming, bed.stream.stage) == (None, host, Stage.LOADING)
    bed.hosts.ready(host.number)
    assert (bed.stream.host, bed.stream.coming, bed.stream.stage) == (host, None, Stage.RUNNING)
    assert bed.said(StartStream) == [StartStream(1, host.number)]


def test_rule_1_the_former_one_s_workers_are_stopped_and_it_ends_with_the_last_of_them(bed):
    former = bed.fork()
    worker = works(bed.stream)
    worker.host = former
    later = bed.executed(serves=False)
    assert bed.stream.stage is Stage.RUNNING, "the former one serves until then"
    bed.hosts.ready(later.number)
    assert bed.stream.host is later
    assert (bed.stopped, bed.planners_stopped) == ([former], 1)
    assert bed.dropped == [], "its worker is at a task"
    del bed.stream.workers[worker.number]
    bed.hosts.worker_gone(bed.stream, former)
    assert bed.dropped == [former.number]


def test_rule_1_a_host_that_serves_does_not_end_with_its_workers(bed):
    host = bed.fork()
    bed.hosts.worker_gone(bed.stream, host)
    assert bed.dropped == []


def test_rule_1_one_that_comes_takes_the_place_of_another_that_comes(bed):
    first = bed.fork(serves=False)
    second = bed.fork(session=OTHER, serves=False)
    assert bed.stream.coming is second
    assert bed.dropped == [first.number]


# --- rule 2 ---


def test_rule_2_a_fork_is_taken_when_the_stream_has_no_host(bed):
    host = bed.fork(serves=False)
    assert (bed.stream.coming, bed.stream.stage) == (host, Stage.LOADING)
    bed.hosts.ready(host.number)
    assert bed.stream.host is host
    assert bed.said(BindHost) == [BindHost(host.number, 1)]


def test_rule_2_whoever_has_handed_it_over_is_asked_for_nothing_more(bed):
    bed.stream.requests.fork_from = bed.stream.requests.program_from = TRAINER
    bed.fork()
    assert not bed.stream.requests.is_asked(TRAINER)


def test_rule_2_one_that_has_said_all_before_it_is_given_serves_at_once(bed):
    host = bed.hosts.new_fork(TRAINER)
    bed.hosts.ready(host.number)
    bed.hosts.identified(host.number, OWN)
    bed.hosts.give(bed.stream, host)
    assert (bed.stream.host, bed.stream.stage) == (host, Stage.RUNNING)
    assert len(bed.said(AskProgram)) == 1


def test_rule_2_a_stream_that_has_failed_takes_none(bed):
    bed.stream.failure = ("stream_failed", "it has failed", b"")
    host = bed.fork()
    assert (bed.stream.host, bed.stream.coming, bed.dropped) == (None, None, [host.number])


def test_rule_2_not_while_the_trainer_of_the_serving_fork_lives(bed):
    bed.consumed()
    host = bed.fork()
    refused = bed.fork(session=OTHER)
    assert bed.stream.host is host
    assert bed.dropped == [refused.number]


def test_rule_2_a_fork_of_a_dead_trainer_gives_way_to_it(bed):
    former = bed.fork()
    host = bed.fork(session=OTHER)
    assert bed.stream.host is host
    assert bed.dropped == [former.number]


def test_rule_2_an_executed_host_does_not(bed):
    host = bed.executed()
    refused = bed.fork()
    assert bed.stream.host is host
    assert bed.dropped == [refused.number]


# --- rules 3 and 4 ---


def ticks(bed: Bed, *, after_s: float = TRAINER_GONE_S) -> None:
    """The trainer is seen to be gone, and once more after a while."""
    bed.hosts.tick(100.0)
    bed.hosts.tick(100.0 + after_s)


def left(bed: Bed, **fields) -> Host:
    """A fork that serves and whose trainer has just gone."""
    host = bed.fork()
    bed.stream.lingers_until_s = 1000.0
    for name, value in ({"has_program": True} | fields).items():
        setattr(bed.stream, name, value)
    return host


def test_rule_3_an_executed_host_comes_when_the_trainer_of_the_fork_is_gone(bed):
    host = left(bed)
    ticks(bed, after_s=TRAINER_GONE_S / 2)
    assert bed.said(StartStream) == [], "it may be about to be started again"
    ticks(bed)
    assert len(bed.said(StartStream)) == 1
    assert bed.stream.host is host, "until the other one is ready"
    ticks(bed)
    assert len(bed.said(StartStream)) == 1


def test_rule_3_not_while_the_trainer_lives_or_may_come_back(bed):
    left(bed)
    consumer = bed.consumed()
    ticks(bed)
    consumer.departed = True
    bed.stream.absents[0] = AbsentConsumer(0, 100, None)
    ticks(bed)
    assert bed.said(StartStream) == []


@pytest.mark.parametrize(
    ("what", "value"), [("left_cleanly", True), ("paused", True)], ids=["it has ended in order", "drained"]
)
def test_rule_3_not_for_those_who_may_never_come(bed, what, value):
    left(bed, **{what: value})
    ticks(bed)
    assert bed.said(StartStream) == []


def test_rule_3_not_when_there_is_nothing_to_fill(bed):
    left(bed)
    bed.stream.window.cursors.clear()
    ticks(bed)
    assert bed.said(StartStream) == []


def test_rule_3_not_while_no_process_can_be_had(bed):
    left(bed)
    bed.stream.failed_starts.add(100.0, "limit")
    ticks(bed)
    assert bed.said(StartStream) == []


def test_rule_3_a_parked_stream_gets_an_executed_host(bed):
    bed.stream.stage, bed.stream.has_program = Stage.PARKED, True
    bed.hosts.resume(bed.stream)
    assert bed.stream.stage is Stage.LOADING
    assert len(bed.said(StartStream)) == 1


def test_rule_3_a_trainer_that_was_away_for_a_moment_counts_as_gone_from_the_next_time_on(bed):
    left(bed)
    consumer = bed.consumed()
    bed.hosts.tick(100.0)
    consumer.departed = True
    bed.hosts.tick(101.0)
    consumer.departed = False
    bed.hosts.tick(102.0)
    consumer.departed = True
    bed.hosts.tick(103.0)
    assert bed.said(StartStream) == []


def test_rule_4_a_fork_is_to_say_what_its_program_is_before_it_ends(bed):
    bed.stream.spec = NOT_IDENTIFIED
    host = bed.fork("")
    assert bed.hosts.is_telling(bed.stream)
    bed.hosts.identified(host.number, OWN)
    assert bed.hosts.is_telling(bed.stream), "it writes it"
    bed.hosts.program_kept(bed.stream)
    assert not bed.hosts.is_telling(bed.stream)


def test_rule_4_one_that_will_never_know_has_nothing_to_say(bed):
    bed.stream.spec = NOT_IDENTIFIED
    host = bed.fork("")
    bed.hosts.identified(host.number, "")
    assert host.mute
    assert not bed.hosts.is_telling(bed.stream)


def test_rule_4_a_fork_is_an_orphan_once_its_trainer_is_gone(bed):
    consumer = bed.consumed()
    bed.fork()
    assert not bed.hosts.is_orphan(bed.stream)
    consumer.departed = True
    assert bed.hosts.is_orphan(bed.stream)
    bed.executed()
    assert not bed.hosts.is_orphan(bed.stream)


# --- rule 5 ---


def test_rule_5_its_spare_goes_on_first(bed):
    host = bed.fork()
    bed.stream.has_program = True
    bed.hosts.spare_ready(host.number)
    bed.hosts.died(host.number, KILLED)
    spare = bed.stream.coming
    assert bed.said(StartSpare) == [StartSpare(1, spare.number, host.number)]
    assert (spare.session, spare.fingerprint) == (host.session, host.fingerprint)
    assert bed.stream.stage is Stage.LOADING
    assert bed.dropped == [], "that would end the spare, too"


def test_rule_5_then_an_executed_host(bed):
    bed.consumed()
    host = bed.fork()
    bed.stream.has_program = True
    bed.hosts.died(host.number, KILLED)
    assert bed.said(StartStream) == [StartStream(1, bed.stream.coming.number)]
    assert bed.dropped == [host.number]
    assert bed.fork_wanted_of == []


def test_rule_5_then_another_fork_of_a_living_trainer(bed):
    bed.consumed().departed = True
    bed.consumed(OTHER)
    bed.hosts.died(bed.fork().number, KILLED)
    assert bed.fork_wanted_of == [OTHER]
    assert (bed.stream.requests.fork_from, bed.stream.stage) == (OTHER, Stage.PARKED)


def test_rule_5_then_the_program_of_one_that_does_not_fork(bed):
    bed.consumed(forks=False)
    bed.hosts.died(bed.fork().number, KILLED)
    assert bed.fork_wanted_of == [TRAINER]
    bed.consumed(OTHER)
    bed.stream.requests.fork_from = 0
    bed.hosts.resume(bed.stream)
    assert bed.fork_wanted_of == [TRAINER, OTHER], "one that forks is asked first"


def test_rule_5_a_stream_that_somebody_consumes_and_for_which_there_is_none_fails(bed):
    bed.consumed(forks=False, has_program=False)
    bed.hosts.died(bed.fork().number, KILLED)
    (failure,) = bed.failures
    assert "it was never handed over" in failure


def test_rule_5_one_that_nobody_consumes_or_whose_consumer_may_come_back_waits(bed):
    bed.hosts.died(bed.fork().number, KILLED)
    assert (bed.failures, bed.stream.stage) == ([], Stage.PARKED)
    bed.consumed(forks=False)
    bed.stream.absents[0] = AbsentConsumer(0, 100, None)
    bed.hosts.resume(bed.stream)
    assert bed.failures == []


def test_rule_5_a_trainer_is_asked_once(bed):
    bed.consumed()
    bed.stream.stage = Stage.PARKED
    bed.hosts.resume(bed.stream)
    bed.hosts.resume(bed.stream)
    assert bed.fork_wanted_of == [TRAINER]


def test_rule_5_of_one_that_was_coming_as_well(bed):
    host = bed.executed(serves=False)
    bed.hosts.died(host.number, KILLED)
    assert bed.stream.coming not in (None, host)
    assert (bed.stream.host_deaths, bed.stream.counters.zygote_deaths) == (1, 1)
    assert bed.dropped == [host.number]


def test_rule_5_what_serves_goes_on_when_the_coming_one_dies(bed):
    host = bed.fork()
    coming = bed.executed(serves=False)
    bed.hosts.died(coming.number, KILLED)
    assert (bed.stream.host, bed.stream.coming, bed.stream.stage) == (host, None, Stage.RUNNING)
    assert len(bed.said(StartStream)) == 1


def test_rule_5_hosts_that_die_again_and_again_end_the_stream(bed):
    bed.stream.has_program = True
    for _ in range(MOST_KILLS):
        bed.hosts.died(bed.executed().number, KILLED)
    assert bed.failures == []
    last = bed.stream.coming.number
    bed.hosts.died(last, KILLED)
    assert bed.dropped[-1] == last
    (failure,) = bed.failures
    assert failure.endswith(f"dies again and again: {KILLED}")


def test_rule_5_the_death_of_one_that_serves_no_longer_is_no_loss(bed):
    former = bed.fork()
    worker = works(bed.stream)
    worker.host = former
    host = bed.executed()
    bed.hosts.died(former.number, KILLED)
    assert (bed.stream.host, bed.stream.host_deaths) == (host, 0)
    assert bed.dropped == [former.number]


# --- rule 6 ---


def test_rule_6_the_program_is_asked_for_once_the_fingerprint_is_known(bed):
    host = bed.fork("")
    assert bed.said(AskProgram) == []
    bed.hosts.identified(host.number, OWN)
    bed.hosts.identified(host.number, OWN)
    assert bed.said(AskProgram) == [AskProgram(host.number, SMALL_PROGRAM_BYTES)]


def test_rule_6_not_when_it_is_there(bed):
    bed.stream.has_program = True
    bed.fork()
    assert bed.said(AskProgram) == []


def test_rule_6_a_large_one_is_written_when_rule_3_needs_it(bed):
    host = left(bed, has_program=False)
    bed.hosts.program_refused(host.number, "")
    ticks(bed)
    assert bed.said(AskProgram)[1:] == [AskProgram(host.number, 0)]
    bed.hosts.program_kept(bed.stream)
    ticks(bed)
    assert len(bed.said(StartStream)) == 1


def test_rule_6_one_that_cannot_be_pickled_is_not_asked_for_again(bed):
    host = left(bed, has_program=False)
    assert bed.hosts.program_refused(host.number, "a lock cannot be pickled") is None
    assert bed.stream.unpicklable == "a lock cannot be pickled"
    ticks(bed)
    assert len(bed.said(AskProgram)) == 1
    bed.hosts.program_refused(host.number, "a lock cannot be pickled")
    assert [each.event for each in bed.said(Log)] == ["carried by fork"], "it was told"
    bed.hosts.program_kept(bed.stream)
    assert bed.stream.unpicklable == "", "another trainer's can"


def no_room(bed: Bed) -> StreamState | None:
    """There is no comfortable room for the program of a dead trainer's fork. The stream whose host is to end."""
    host = left(bed, has_program=False)
    bed.hosts.program_refused(host.number, "")
    ticks(bed)
    found = bed.hosts.program_refused(host.number, "")
    ticks(bed)
    assert len(bed.said(AskProgram)) == 2, "it is not asked for in vain"
    return found


def test_rule_6_without_room_for_it_the_host_of_the_dead_trainer_ends(bed):
    assert no_room(bed) is bed.stream
    assert bed.fork_wanted_of == []


def test_rule_6_or_another_trainer_is_asked_for_a_fork(bed):
    bed.consumed(OTHER)
    assert no_room(bed) is None
    assert bed.fork_wanted_of == [OTHER]
    assert bed.stream.requests.fork_from == OTHER


# --- rule 7 ---


def test_rule_7_a_fork_serves_only_once_it_is_known_to_be_of_the_stream_s_program(bed):
    host = bed.fork("")
    assert bed.stream.host is None
    bed.hosts.identified(host.number, OWN)
    assert bed.stream.host is host


def test_rule_7_where_the_stream_s_is_not_known_it_serves_and_tells_it(bed):
    bed.stream.spec = NOT_IDENTIFIED
    host = bed.fork("")
    assert bed.stream.host is host
    bed.hosts.identified(host.number, OWN)
    assert bed.stream.spec.fingerprint == OWN
    assert bed.said(Identify) == [Identify(1)]


@pytest.mark.parametrize(
    ("fingerprint", "why"), [(FOREIGN, "has been changed"), ("", "nobody can tell")], ids=["changed", "mute"]
)
def test_rule_7_one_of_another_program_is_refused_and_its_trainer_is_not_asked_again(bed, fingerprint, why):
    consumer = bed.consumed()
    host = bed.fork("")
    bed.hosts.identified(host.number, fingerprint)
    assert why in consumer.refused
    assert bed.dropped == [host.number]
    assert bed.fork_wanted_of == []
    assert bed.failures == [consumer.refused], "there is no other trainer"


def test_rule_7_another_trainer_is_asked_then(bed):
    bed.consumed()
    bed.consumed(OTHER)
    bed.fork(FOREIGN)
    assert bed.fork_wanted_of == [OTHER]
    assert bed.failures == []


def test_rule_7_it_is_refused_at_once_where_its_fingerprint_is_known_before_it_is_given(bed):
    host = bed.hosts.new_fork(TRAINER)
    bed.hosts.identified(host.number, FOREIGN)
    bed.hosts.give(bed.stream, host)
    assert bed.stream.coming is None
    assert bed.said(BindHost) == []
    assert bed.dropped == [host.number]


def test_rule_7_if_it_has_served_already_its_stream_fails(bed):
    bed.stream.spec = NOT_IDENTIFIED
    host = bed.fork("")
    bed.stream.spec = SPEC
    bed.hosts.identified(host.number, FOREIGN)
    assert len(bed.failures) == 1


# --- no process can be had ---


def test_a_host_that_cannot_be_started_is_started_later(bed):
    host = bed.executed(serves=False)
    assert bed.hosts.not_started(host.number, 100.0, "limit")
    assert (bed.stream.stage, bed.stream.coming) == (Stage.PARKED, None)
    assert bed.stream.failed_starts.is_pausing
    bed.stream.failed_starts.end_pause(100.0 + LONGEST_PAUSE_S)
    again = bed.executed(serves=False)
    assert not bed.hosts.not_started(again.number, 101.0, "limit"), "it was told"


def test_of_a_host_that_is_wanted_no_more_it_is_no_matter(bed):
    host = bed.executed(serves=False)
    bed.hosts.forget(bed.stream)
    assert not bed.hosts.not_started(host.number, 100.0, "limit")
    former = bed.fork(serves=False)
    bed.stream.coming = None
    assert not bed.hosts.not_started(former.number, 100.0, "limit")
    assert not bed.stream.failed_starts.is_pausing


def test_a_host_that_takes_another_s_place_shows_that_processes_can_be_had(bed):
    bed.fork()
    bed.stream.failed_starts.add(100.0, "limit")
    bed.executed()
    assert not bed.stream.failed_starts.is_pausing


def test_the_one_that_serves_goes_on_meanwhile(bed):
    bed.fork()
    host = bed.executed(serves=False)
    bed.hosts.not_started(host.number, 100.0, "limit")
    assert bed.stream.stage is Stage.RUNNING


def test_after_some_failures_in_a_row_an_executed_host_takes_the_place_of_a_fork(bed):
    bed.fork()
    bed.stream.has_program = True
    for count in range(EXECUTED_AFTER + 2):
        assert bool(bed.said(StartStream)) == (count > EXECUTED_AFTER)
        bed.stream.failed_starts.count = count
        bed.hosts.cannot_fork(bed.stream)
    assert len(bed.said(StartStream)) == 1
    assert [each.event for each in bed.said(Log)] == ["executed in place of a fork"]


def test_a_stream_that_is_forgotten_has_no_hosts(bed):
    host, coming = bed.fork(), bed.executed(serves=False)
    bed.hosts.forget(bed.stream)
    assert (bed.stream.host, bed.stream.coming) == (None, None)
    assert bed.hosts.get(host.number) is bed.hosts.get(coming.number) is None
    assert bed.hosts.get(bed.hosts.new_fork(TRAINER).number) is not None
    bed.hosts.died(host.number, KILLED)
    assert bed.stream.host_deaths == 0


def test_numbers_of_hosts_are_never_used_again(bed):
    first = bed.fork()
    bed.hosts.drop(first)
    assert bed.hosts.new_fork(TRAINER).number > first.number
