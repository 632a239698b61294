"""Loaders that a framework makes from another, and those that are pickled."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle

import psutil
import pytest
import torch
from prefetchd_client import PrefetchLoader

from tests.scenario.bad_datasets import Rows
from tests.scenario.datasets import Numbers, equal
from tests.scenario.small_rooms import in_a_small_room
from tests.scenario.waiting import report_when, ring_when, stream_when, until


class Backwards:
    """A sampler of indices."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length - 1, -1, -1))

    def __len__(self):
        return self.length


def consumed_are(daemon, *names):
    """Waits until these streams, and no others, have a consumer."""

    def look(report):
        return sorted(each["name"] for each in report.snapshot["streams"] if each["consumers"]) == sorted(names)

    return report_when(daemon, look, f"{names} are consumed")


def batches(dataset, **arguments):
    with PrefetchLoader(dataset, batch_size=4, **arguments) as loader:
        return list(loader)


def test_a_loader_with_a_sampler_takes_the_stream_of_the_unused_one_without(shared_daemon):
    dataset = Numbers(20)
    with PrefetchLoader(dataset, batch_size=4, stream="anew") as first:
        with PrefetchLoader(dataset, batch_size=4, sampler=Backwards(20)) as second:
            assert second.stats()["stream"] == "anew"
            consumed_are(shared_daemon, "anew")
            assert all(map(equal, second, list(torch.utils.data.DataLoader(dataset, 4, sampler=Backwards(20)))))
        assert all(map(equal, first, batches(Numbers(20)))), "whoever wants the first one after all has it"


def test_a_loader_that_was_iterated_over_keeps_its_stream(shared_daemon):
    dataset = Numbers(20)
    with PrefetchLoader(dataset, batch_size=4, stream="kept") as first:
        iterator = iter(first)
        next(iterator)
        with PrefetchLoader(dataset, batch_size=4, sampler=Backwards(20), stream="other"):
            consumed_are(shared_daemon, "kept", "other")
        assert len(list(iterator)) == 4


@pytest.mark.parametrize("samplers", [(False, False), (True, True), (True, False)])
def test_loaders_that_nobody_makes_from_others_keep_theirs(shared_daemon, samplers):
    dataset = Numbers(20)
    first, second = (
        PrefetchLoader(dataset, batch_size=4, sampler=Backwards(20) if own else None, stream=name)
        for own, name in zip(samplers, ("one", "two"))
    )
    with first, second:
        consumed_are(shared_daemon, "one", "two")


def test_an_unpickled_loader_is_one_of_its_own_with_the_same_arguments(shared_daemon):
    with PrefetchLoader(Numbers(20), batch_size=3, shuffle=True, seed=5, drop_last=True, lookback=2) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as again:
            assert again.stats()["stream"] != loader.stats()["stream"]
            assert (again.fingerprint, again.spec.lookback) == (loader.fingerprint, 2)
            assert again.state_dict()["step"] == 0
            loader.set_epoch(0)
            assert all(map(equal, again, loader))


def test_a_pickled_batch_sampler_goes_along(shared_daemon):
    sampler = torch.utils.data.BatchSampler(Backwards(20), 6, drop_last=False)
    with (
        PrefetchLoader(Numbers(20), batch_sampler=sampler) as loader,
        pickle.loads(pickle.dumps(loader)) as again,
    ):
        assert all(map(equal, again, loader))
        assert len(again) == 4


class Drawn(torch.utils.data.Dataset):
    """Samples that are random."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(())


class Counting(PrefetchLoader):
    """Has other arguments than its class."""

    def __init__(self, length: int, **arguments) -> None:
        self.length = length
        super().__init__(Numbers(length), batch_size=3, **arguments)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_copy_has_what_a_subclass_and_a_script_have_set(shared_daemon, copied):
    with Counting(10, shuffle=True, seed=3) as loader:
        loader.name = "train"
        with copied(loader) as again:
            assert (type(again), again.length, again.name) == (Counting, 10, "train")
            assert all(map(equal, again, loader))


def test_a_deep_copy_shares_nothing_that_decides_an_order(shared_daemon):
    generator = torch.Generator().manual_seed(3)
    with PrefetchLoader(Numbers(10), batch_size=10, shuffle=True, generator=generator) as loader:
        next(iter(loader))
        before = generator.get_state()
        with copy.deepcopy(loader) as again:
            next(iter(again))
            assert again.generator is not generator
            assert again.dataset is not loader.dataset
        assert torch.equal(generator.get_state(), before)


def rings_of(daemon):
    return sorted(each for each in daemon.segments() if "-ring-" in each)


def test_a_variable_that_is_assigned_again_and_again_leaves_two_rings_at_most(daemon):
    """As cells of a notebook do. Found as 14 rings and 11.6 GB."""
    daemon.start()
    kept, names = Numbers(400), set()
    for cell in range(14):
        kept.cell = cell
        loader = PrefetchLoader(kept, batch_size=4, num_workers=1)
        assert len(list(loader)) == 100
        assert len(rings_of(daemon)) <= 3, "the one in use, the one before, and one that is about to go"
        # Lower ones may be those of loaders that other tests' garbage has.
        names.add(loader.stats()["stream"].split(":")[-1])
    assert len(names) <= 2
    loader.close()


def pss_bytes(processes) -> int:
    """What they take of the machine's memory together."""
    found = 0
    for each in processes:
        with contextlib.suppress(psutil.Error):
            found += each.memory_full_info().pss
    return found


def test_a_variable_that_is_assigned_again_and_again_leaves_no_more_processes_and_memory_than_twice(daemon):
    """Found as 20 processes with 8.9 GB. Those of a stream are its zygote and its worker; its helpers come and go."""
    daemon.start()
    kept, used_bytes = Numbers(400, width=4096), []
    kept.table = torch.ones(8 << 20)
    for cell in range(14):
        kept.cell = cell
        loader = PrefetchLoader(kept, batch_size=4, num_workers=1)
        assert len(list(loader)) == 100
        # The daemon's, and of the loader in use, the one before, and one that is about to go.
        until(lambda: len(daemon.processes()) <= 1 + 3 * 2, f"processes in cell {cell}")
        used_bytes.append(pss_bytes(daemon.processes()))
    # Of the first it had but one, of the second two.
    assert max(used_bytes[2:]) < 1.5 * max(used_bytes[1:3])
    loader.close()
    until(lambda: len(daemon.processes()) <= 1 + 2 * 2, "the processes of those before are gone")


def logged(daemon, event: str) -> list[dict]:
    lines = map(json.loads, daemon.paths.log.read_text().splitlines())
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize("start", ["exec", "fork"])
def test_the_log_says_that_a_ring_was_given_up_because_a_fresh_one_was_asked_for(daemon, monkeypatch, start):
    """Found as "not known what it is of": of a fork that is nobody asks."""
    monkeypatch.setenv("PREFETCHD_START", start)
    daemon.start()
    for fresh in (False, True):
        with PrefetchLoader(Numbers(8), batch_size=4, num_workers=1, stream="one", fresh=fresh) as loader:
            assert len(list(loader)) == 2
    assert [line["why"] for line in logged(daemon, "stream replaced")] == ["fresh"]


@pytest.mark.parametrize("start", ["exec", "fork"])
def test_a_loader_that_is_made_again_for_the_same_gets_the_ring_of_the_one_before(daemon, monkeypatch, start):
    """As a loop does that makes its validation loader in each epoch. A fork of a machine that has other work may not
    know in time what it is of: then the ring before is given up, and the log says so."""
    monkeypatch.setenv("PREFETCHD_START", start)
    daemon.start()
    segments, made = [], []

    def made_again() -> bool:
        """True when it has got the ring of the one before."""
        with PrefetchLoader(Numbers(40), batch_size=4, shuffle=False, num_workers=1) as loader:
            assert len(list(loader)) == 10
            assert loader.stats()["stream"].endswith(":0")
            (ring,) = rings_of(daemon)
            segments.append(ring)
            made.append(stream_when(daemon, loader.stats()["stream"])["produced_batches"])
        return len(segments) > 1 and segments[-1] == segments[-2]

    found = [made_again() for _ in range(4)]
    if start == "fork":
        until(lambda: any(found) or found.append(made_again()), "one had the ring of the one before")
        late = [line for line in logged(daemon, "stream replaced") if line["why"] == "not known what it is of"]
        assert len(set(segments)) == 1 + len(late)
        assert len(late) == len(logged(daemon, "stream replaced"))
    else:
        assert len(set(segments)) == 1
    until(lambda: len(rings_of(daemon)) == 1, "only the last one lingers")


def test_rings_that_linger_are_bounded_together_and_the_last_one_stays(daemon):
    daemon.start("--linger-memory", "6MiB", "--linger-clean", "600")
    for number in range(4):
        with PrefetchLoader(Rows(16, 1 << 15), batch_size=4, buffer=4, stream=f"left {number}") as loader:
            assert len(list(loader)) == 4
    report_when(
        daemon,
        lambda report: [stream["name"] for stream in report.snapshot["streams"]] == ["left 3"],
        "the others give way",
    )
    until(lambda: len(rings_of(daemon)) == 1, "their memory is free")


def test_by_default_they_take_a_quarter_of_the_memory_that_there_is_without_them(daemon):
    """Of a shared memory of 24 MiB, most of which is free, that is two rings of 2 MiB, and no third."""
    said = in_a_small_room(
        """
        from prefetchd.status.snapshot import read_report
        from prefetchd.wire.runtime_paths import runtime_paths
        from tests.scenario.waiting import until

        def left():
            return [stream["name"] for stream in read_report(runtime_paths()).snapshot["streams"]]

        for number in range(5):
            with PrefetchLoader(Rows(8, 1 << 14), batch_size=4, buffer=4, stream=f"left{number}") as loader:
                assert len(list(loader)) == 2
        until(lambda: left() == ["left3", "left4"], "those before give way")
        print("left", *left())
        """,
        daemon.environment,
    )
    assert said["left"] == "left3 left4"


def test_a_loader_goes_on_while_batches_of_its_closed_namesake_are_held(shared_daemon):
    """They may be half of the ring, and what it hands out itself another half."""
    dataset = Numbers(48)
    held = batches(dataset, buffer=6, num_workers=1)
    again = batches(dataset, buffer=6, num_workers=1, timeout=30)
    assert len(held) == len(again) == 12
    assert all(map(equal, held, again))


def test_what_takes_the_place_of_another_of_its_name_is_filled_before_anybody_iterates(shared_daemon):
    with PrefetchLoader(Numbers(20), batch_size=4, sampler=Backwards(20), stream="place"):
        pass
    with PrefetchLoader(Numbers(40), batch_size=4, sampler=Backwards(40), stream="place"):
        stream_when(shared_daemon, "place", lambda stream: stream["ring"] and stream["ring"]["ready"] > 5)


@pytest.mark.parametrize("inline", ["", "1"], ids=["daemon", "inline"])
@pytest.mark.parametrize("sampler", [None, torch.utils.data.WeightedRandomSampler([1.0] * 40, 40)], ids=["", "sampler"])
def test_a_loader_that_is_made_for_each_epoch_has_another_order_in_each(shared_daemon, monkeypatch, inline, sampler):
    """Found with skorch's partial_fit(): each had the first order again."""
    monkeypatch.setenv("PREFETCHD_INLINE", inline)

    def orders():
        torch.manual_seed(3)
        found = []
        for _ in range(3):
            with PrefetchLoader(Numbers(40), batch_size=40, shuffle=sampler is None, sampler=sampler) as loader:
                found.append(tuple(next(iter(loader))[1].tolist()))
        return found

    found = orders()
    assert len(set(found)) == 3
    assert orders() == found, "whoever seeds again gets the same again"


def test_random_transforms_of_a_loader_that_is_made_for_each_epoch_are_others_in_each(shared_daemon):
    found = set()
    for _ in range(3):
        with PrefetchLoader(Drawn(), batch_size=8) as loader:
            found.add(tuple(next(iter(loader)).tolist()))
    assert len(found) == 3


def test_two_loaders_of_one_dataset_are_no_pairs_of_the_same_samples(shared_daemon):
    dataset = Numbers(40)
    with (
        PrefetchLoader(dataset, batch_size=40, shuffle=True) as one,
        PrefetchLoader(dataset, batch_size=40, shuffle=True) as other,
    ):
        for (first,), (second,) in [(list(one), list(other)) for _ in range(2)]:
            assert first[1].tolist() != second[1].tolist()


def test_a_loader_that_is_made_for_each_epoch_finds_ready_what_was_filled_ahead(daemon):
    """So its epochs are those that the former would have had next."""
    daemon.start()
    names = set()
    for epoch in range(3):
        with PrefetchLoader(Numbers(40), batch_size=4, shuffle=True, buffer=30, num_workers=1) as loader:
            assert loader.state_dict()["epoch"] == epoch
            assert len(list(loader)) == 10
            name = loader.stats()["stream"]
            names.add(name)
            ring_when(daemon, name, lambda ring: ring["ready"] >= 10, "the next epoch is ready")
    assert len(names) == 1


def test_a_seed_and_a_state_say_where_a_loader_begins(shared_daemon):
    with PrefetchLoader(Numbers(40), batch_size=10, shuffle=True, seed=4) as loader:
        first = list(loader)
        state = loader.state_dict()
        second = list(loader)
    with PrefetchLoader(Numbers(40), batch_size=10, shuffle=True, seed=4) as again:
        assert all(map(equal, again, first))
    with PrefetchLoader(Numbers(40), batch_size=10, shuffle=True, seed=4) as resumed:
        resumed.load_state_dict(state)
        assert all(map(equal, resumed, second))
