"""Orders that only a sampler knows: planned by a process of their own, the same whatever dies, and DataLoader's."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.session.epoch_plans import EpochPlans
from prefetchd_client.session.link import Link
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from prefetchd.wire.errors import CallerError, StreamFailedError
from prefetchd.wire.messages import BEFORE, Assume, Hello
from tests.scenario import samplers
from tests.scenario.datasets import Dice, Numbers
from tests.scenario.waiting import is_gone, stream_when, until

LENGTH = 50


def seeded(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order(loader) -> list[list[int]]:
    return [index.tolist() for _, index in loader]


def is_full(stream) -> bool:
    """Nothing more is filled for now."""
    ring = stream["ring"] or {}
    return ring.get("free") == 0 and not ring.get("filling") and not any(each["busy"] for each in stream["workers"])


def full_after(batches: int):
    return lambda stream: is_full(stream) and stream["consumed_batches"] == batches


def planners(daemon) -> list[psutil.Process]:
    return [each for each in daemon.processes() if each.name() == "prefetchd-plan"]


def test_the_sampler_runs_in_a_process_of_its_own(shared_daemon, tmp_path):
    sampler = samplers.Telling(LENGTH, tmp_path / "pids")
    with PrefetchLoader(Numbers(LENGTH), 4, sampler=sampler) as loader:
        theirs = DataLoader(Numbers(LENGTH), 4, sampler=samplers.Remembering(LENGTH))
        for _ in range(3):
            assert order(loader) == order(theirs)
        (planner,) = planners(shared_daemon)
        assert set((tmp_path / "pids").read_text().split()) == {str(planner.pid)}
        assert sampler.passes == 3, "what the sampler counts is in the trainer too"
        assert len(loader) == len(theirs)


def test_epochs_ahead_are_filled_before_they_begin(shared_daemon):
    """Then nothing is dropped, and the generator is where DataLoader leaves it, in the middle of an epoch as well."""
    generator, their_generator = seeded(), seeded()
    with PrefetchLoader(Numbers(20), 4, shuffle=True, generator=generator, buffer=10, stream="ahead") as loader:
        theirs = DataLoader(Numbers(20), 4, shuffle=True, generator=their_generator)
        for epoch in range(4):
            stream_when(shared_daemon, "ahead", full_after(5 * epoch), "two epochs are ready")
            for (_, ours), (_, expected) in zip(loader, theirs, strict=True):
                assert ours.tolist() == expected.tolist()
                assert torch.equal(generator.get_state(), their_generator.get_state())
        assert stream_when(shared_daemon, "ahead")["replanned_batches"] == 0


def test_many_short_epochs_ahead_are_planned_once(shared_daemon, tmp_path):
    """Found as a stall at each epoch: how those ahead begin was forgotten, and a planner began again to tell it."""
    epochs = 24
    sampler = samplers.Telling(LENGTH, tmp_path / "pids")
    theirs = DataLoader(Numbers(LENGTH), 10, sampler=samplers.Remembering(LENGTH))
    with PrefetchLoader(Numbers(LENGTH), 10, sampler=sampler, buffer=5 * epochs) as loader:
        found = [order(loader)]
        stream_when(shared_daemon, loader.stats()["stream"], is_full)
        found += [order(loader) for _ in range(epochs)]
        assert found == [order(theirs) for _ in range(epochs + 1)]
        assert len(set((tmp_path / "pids").read_text().split())) == 1


def test_a_generator_that_is_seeded_between_epochs_is_seen(shared_daemon):
    generator, their_generator = seeded(), seeded()
    with PrefetchLoader(Numbers(20), 4, shuffle=True, generator=generator, buffer=10, stream="seeded") as loader:
        theirs = DataLoader(Numbers(20), 4, shuffle=True, generator=their_generator)
        for epoch, seed in enumerate((3, 4, 4)):
            generator.manual_seed(seed)
            their_generator.manual_seed(seed)
            assert order(loader) == order(theirs)
            told = stream_when(shared_daemon, "seeded", full_after(5 * (epoch + 1)), "the next epoch is ready")
        assert order(loader) == order(theirs)
        assert told["replanned_batches"] > 0


@pytest.mark.parametrize("calls", [True, False])
def test_set_epoch_is_foreseen(shared_daemon, calls):
    ours, theirs = (DistributedSampler(Numbers(LENGTH), 2, 1, seed=5) for _ in range(2))
    name = f"set_epoch {calls}"
    with PrefetchLoader(Numbers(LENGTH), 4, sampler=ours, buffer=16, stream=name) as loader:
        dropped = []
        for epoch in range(4):
            if calls:
                ours.set_epoch(epoch)
                theirs.set_epoch(epoch)
            assert order(loader) == order(DataLoader(Numbers(LENGTH), 4, sampler=theirs))
            told = stream_when(shared_daemon, name, full_after(7 * (epoch + 1)), "the next epoch is ready")
            dropped.append(told["replanned_batches"])
    if calls:
        assert dropped == [0] * 4
    else:
        # What was thought of the second epoch was wrong; after that it is known.
        assert dropped[0] == 0
        assert dropped[1] == dropped[3] > 0


KEEPERS = {
    "counts as it begins": lambda: samplers.SelfCounting(LENGTH, at_end=False),
    "counts as it ends": lambda: samplers.SelfCounting(LENGTH, at_end=True),
    "has dice of its own": lambda: samplers.Private(LENGTH),
}


@pytest.mark.parametrize("inline", ["", "1"])
@pytest.mark.parametrize("name", KEEPERS)
def test_a_sampler_that_nobody_tells_the_epoch_goes_on_by_itself(shared_daemon, monkeypatch, name, inline):
    """Found as accelerate's SeedableRandomSampler, whose first epoch came again and again; and as orders that depended
    on how far ahead the planner was."""
    monkeypatch.setenv("PREFETCHD_INLINE", inline)
    ours, theirs = KEEPERS[name](), KEEPERS[name]()
    stream = f"{name} {inline}"
    with PrefetchLoader(Numbers(LENGTH), 4, sampler=ours, buffer=40, stream=stream) as loader:
        for epoch in range(4):
            assert order(loader) == order(DataLoader(Numbers(LENGTH), 4, sampler=theirs)), epoch
            assert ours.epoch == theirs.epoch
            if not inline:
                stream_when(shared_daemon, stream, full_after(13 * (epoch + 1)), "later epochs are ready")
        state = json.loads(json.dumps(loader.state_dict()))
    again = KEEPERS[name]()
    with PrefetchLoader(Numbers(LENGTH), 4, sampler=again, buffer=40, stream=f"again {stream}") as loader:
        loader.load_state_dict(state)
        if not (inline and name == "has dice of its own"):
            assert order(loader) == order(DataLoader(Numbers(LENGTH), 4, sampler=theirs))


def test_a_sampler_that_counts_and_is_told_is_as_it_is_told(shared_daemon):
    ours, theirs = (samplers.SelfCounting(LENGTH, at_end=True) for _ in range(2))
    with PrefetchLoader(Numbers(LENGTH), 4, sampler=ours, buffer=16) as loader:
        for epoch in (0, 1, 5, 5, 2):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert order(loader) == order(DataLoader(Numbers(LENGTH), 4, sampler=theirs))


def test_batches_of_a_batch_sampler_have_their_own_sizes(shared_daemon):
    sizes = [3, 1, 5, 2, 7]
    ours, theirs = samplers.Buckets(sizes), samplers.Buckets(sizes)
    with PrefetchLoader(Dice(LENGTH), batch_sampler=ours) as loader:
        expected = DataLoader(Dice(LENGTH), batch_sampler=theirs)
        for epoch in range(3):
            loader.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert ours.epoch == epoch, "the loader's set_epoch() tells the sampler"
            assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in expected]


def test_a_batch_of_many_thousand_keys(shared_daemon):
    """They are more than a packet can hold."""
    with PrefetchLoader(torch.arange(100_000), 40_000, sampler=range(99_999, -1, -1)) as loader:
        assert torch.equal(torch.cat([batch.clone() for batch in loader]), torch.arange(99_999, -1, -1))


def test_two_iterators_at_once_take_an_epoch_each(shared_daemon):
    with PrefetchLoader(Numbers(20), 4, sampler=samplers.Remembering(20)) as loader:
        pairs = [(ours.tolist(), theirs.tolist()) for (_, ours), (_, theirs) in zip(loader, loader, strict=True)]
    first, second = (samplers.Remembering(20) for _ in range(2))
    list(second)
    expected = zip(DataLoader(range(20), 4, sampler=first), DataLoader(range(20), 4, sampler=second), strict=True)
    assert pairs == [(one.tolist(), two.tolist()) for one, two in expected]


def test_a_sampler_without_an_end_and_one_that_breaks_off(shared_daemon):
    with PrefetchLoader(Numbers(LENGTH), 4, sampler=samplers.Endless(), buffer=8) as loader:
        with pytest.raises(TypeError):
            len(loader)
        for _ in range(2):
            found = [index.tolist() for _, index in itertools.islice(loader, 30)]
            assert list(itertools.chain(*found)) == [index % 50 for index in range(120)]


def test_a_sampler_that_raises_does_so_in_the_trainer(shared_daemon):
    with PrefetchLoader(Numbers(LENGTH), 2, sampler=samplers.Failing(5)) as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert [next(iterator)[1].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
            with pytest.raises(LookupError, match="no more keys"):
                next(iterator)
            assert next(iterator, "over") == "over"


def test_a_planner_that_dies_again_and_again_ends_the_stream(shared_daemon):
    with (
        PrefetchLoader(Numbers(LENGTH), 2, sampler=samplers.Deadly()) as loader,
        pytest.raises(StreamFailedError, match="runs its sampler, dies again and again: exited with 3"),
    ):
        next(iter(loader))


def test_the_planner_is_killed_and_another_goes_on_where_it_was(shared_daemon):
    generator, theirs = seeded(), seeded()
    sampler = RandomSampler(Numbers(400), replacement=True, generator=generator)
    with PrefetchLoader(Numbers(400), 4, sampler=sampler, buffer=8, stream="killed") as loader:
        expected = DataLoader(range(400), 4, sampler=RandomSampler(range(400), replacement=True, generator=theirs))
        assert order(loader) == [batch.tolist() for batch in expected]
        found = []
        for step, (_, index) in enumerate(loader):
            found.append(index.tolist())
            if step % 30 == 5:
                for each in planners(shared_daemon):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
        assert found == [batch.tolist() for batch in expected]
        assert order(loader) == [batch.tolist() for batch in expected]
        assert torch.equal(generator.get_state(), theirs.get_state())


def test_the_daemon_is_killed_and_the_order_goes_on(daemon):
    """The next one's planner begins with the epoch that the trainer is in; what was ready is not made again."""
    daemon.start()
    generator, theirs = seeded(), seeded()
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=generator, buffer=12, stream="orphan") as loader:
        expected = DataLoader(range(120), 4, shuffle=True, generator=theirs)
        for _ in range(2):
            assert order(loader) == [batch.tolist() for batch in expected]
        found = []
        for step, (_, index) in enumerate(loader):
            found.append(index.tolist())
            if step == 9:
                stream_when(daemon, "orphan", is_full, "its ring is full")
                pid = daemon.pid
                os.kill(pid, signal.SIGKILL)
                until(lambda pid=pid: is_gone(pid), "the daemon is dead")
                daemon.start()
        assert found == [batch.tolist() for batch in expected]
        assert order(loader) == [batch.tolist() for batch in expected]
        assert stream_when(daemon, "orphan")["replanned_batches"] == 0


def test_the_daemon_is_killed_while_an_epoch_is_planned_anew(daemon, monkeypatch):
    """Found by chaos: the next one knows nothing of what was assumed."""
    daemon.start()
    told = []
    plan_anew = EpochPlans._plan_anew

    def killing(plans, wanted):
        plan_anew(plans, wanted)
        told.append(wanted.epoch)
        if len(told) == 1:
            pid = daemon.pid
            os.kill(pid, signal.SIGKILL)
            until(lambda: is_gone(pid), "the daemon is dead")
            daemon.start()

    monkeypatch.setattr(EpochPlans, "_plan_anew", killing)
    generator, theirs = seeded(), seeded()
    with PrefetchLoader(Numbers(40), 4, shuffle=True, generator=generator, buffer=8) as loader:
        expected = DataLoader(range(40), 4, shuffle=True, generator=theirs)
        for seed in (11, 5, 6):
            generator.manual_seed(seed)
            theirs.manual_seed(seed)
            assert order(loader) == [batch.tolist() for batch in expected]
    assert told[0] == 1


def kill_and_start(daemon) -> None:
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")
    daemon.start()


def test_the_daemon_is_killed_before_its_planner_has_said_anything(daemon):
    """Found by chaos: the next one planned a resumed epoch from what the program said, and dropped what was ready."""
    daemon.start()
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=seeded()) as loader:
        order(loader)
        straight = order(loader)
    # Not the generator that the state goes on from: only what is assumed can tell.
    arguments = {"batch_size": 4, "shuffle": True, "generator": seeded(99), "buffer": 8, "stream": "resumed"}
    with PrefetchLoader(Numbers(120), **arguments) as loader:
        loader.generator.set_state(seeded().get_state())
        order(loader)
        iterator = iter(loader)
        for _ in range(7):
            next(iterator)
        state = loader.state_dict()
        stream_when(daemon, "resumed", is_full, "its ring is full")
    kill_and_start(daemon)
    with PrefetchLoader(Numbers(120), **arguments) as loader:
        loader.load_state_dict(state)
        kill_and_start(daemon)
        assert order(loader) == straight[7:]
        stream_when(daemon, "resumed", lambda stream: stream["consumed_batches"] == 23, "it was told")
        assert stream_when(daemon, "resumed")["replanned_batches"] == 0


def test_the_next_daemon_hears_how_epochs_begin_before_it_has_a_process_that_could_plan(daemon, monkeypatch):
    """Found under load: the planner had begun by what the program said, and what was ready was dropped."""
    said = []

    def told(name):
        real = getattr(Link, name)

        def tell(link, *message):
            said.extend([type(each) for each in message] or [name])
            return real(link, *message)

        return tell

    daemon.start()
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=seeded()) as loader:
        iterator = iter(loader)
        next(iterator)
        for name in ("send", "hand_over_fork"):
            monkeypatch.setattr(Link, name, told(name))
        kill_and_start(daemon)
        assert len(list(iterator)) == 29
        returned = said[said.index(Hello) :]
        assert returned.index(Assume) < returned.index("hand_over_fork")


def test_a_loader_resumes_in_the_middle_of_an_epoch(shared_daemon):
    """With generators as a new script makes them: where they stood is in the state."""
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=seeded(), stream="resumed") as loader:
        order(loader)
        straight = order(loader)
        later = order(loader)
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=seeded(), fresh=True, stream="resumed") as loader:
        order(loader)
        iterator = iter(loader)
        for _ in range(7):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    for fresh in (False, True):
        generator = seeded()
        with PrefetchLoader(
            Numbers(120), 4, shuffle=True, generator=generator, stream="resumed", fresh=fresh
        ) as loader:
            loader.load_state_dict(state)
            assert order(loader) == straight[7:]
            assert order(loader) == later


@pytest.mark.parametrize("seeds", [True, False])
def test_a_resumed_epoch_is_not_mixed_of_two_orders(shared_daemon, monkeypatch, seeds):
    """Found by chaos: the trainer before it had seeded the epoch, as this one `seeds` it when it has loaded its state.
    What it was told of that one's plan was right, and void by then: the state's had taken its place. And what it was
    offered of that plan is void for one that goes on as the state says."""
    arguments = {"batch_size": 4, "shuffle": True, "buffer": 4, "stream": f"seeded epochs {seeds}"}
    with PrefetchLoader(Numbers(120), generator=seeded(), **arguments) as loader:
        order(loader)
        state, resumed = loader.state_dict(), loader.generator.get_state()
        loader.generator.manual_seed(5)
        next(iter(loader))
    assume = EpochPlans.assume

    def crossing(plans, epoch):
        (cursor,) = plans._cursors
        plans._wait(cursor, 30)
        told = cursor.states[BEFORE]
        assume(plans, epoch)
        while not seeds and cursor.states[BEFORE] == told:
            plans._wait(cursor, 30)

    monkeypatch.setattr(EpochPlans, "assume", crossing)
    with PrefetchLoader(Numbers(120), generator=seeded(), **arguments) as loader:
        # Its cursor is there before the state is loaded.
        loader.set_epoch(1)
        loader.load_state_dict(state)
        theirs = DataLoader(range(120), 4, shuffle=True, generator=torch.Generator())
        theirs.generator.set_state(resumed)
        if seeds:
            loader.generator.manual_seed(5)
            theirs.generator.manual_seed(5)
        for _ in range(2):
            assert order(loader) == [batch.tolist() for batch in theirs]
            assert torch.equal(loader.generator.get_state(), theirs.generator.get_state())


def test_who_resumes_in_an_epoch_that_another_process_is_in_joins_it(shared_daemon):
    """Found when looking for the one above: loading a state was taken for another order, even of the same one."""
    arguments = {"batch_size": 4, "shuffle": True, "buffer": 8, "stream": "joined"}
    with PrefetchLoader(Numbers(120), generator=seeded(), **arguments) as first:
        order(first)
        state = first.state_dict()
        iterator = iter(first)
        found = [next(iterator)[1].tolist()]
        with PrefetchLoader(Numbers(120), generator=seeded(99), **arguments) as second:
            second.load_state_dict(state)
            joined = []
            for (_, other), (_, mine) in zip(second, itertools.chain(iterator, [(None, None)]), strict=True):
                joined.append(other.tolist())
                found.append(mine.tolist() if mine is not None else None)
    assert joined == found[:-1]


@pytest.mark.parametrize("apart", [0, 1], ids=["in one epoch", "an epoch apart"])
def test_two_trainers_with_one_sampler_outlive_their_daemon(daemon, apart):
    daemon.start()
    arguments = {"batch_size": 4, "shuffle": True, "buffer": 8, "stream": "both"}
    expected = DataLoader(range(40), 4, shuffle=True, generator=seeded())
    straight = [batch.tolist() for _ in range(4) for batch in expected]

    def epochs(loader: PrefetchLoader) -> Iterator[list[int]]:
        for _ in range(4):
            yield from (index.tolist() for _, index in loader)

    with (
        PrefetchLoader(Numbers(40), generator=seeded(), **arguments) as ahead,
        PrefetchLoader(Numbers(40), generator=seeded(), **arguments) as behind,
    ):
        batches = [epochs(ahead), epochs(behind)]

        def take(which: int, most: int | None = None) -> None:
            found[which] += itertools.islice(batches[which], most)

        found: list[list[list[int]]] = [[], []]
        take(0, 3 + 10 * apart)
        take(1, 1)
        # The next daemon waits for both: each may hold any batch.
        with ThreadPoolExecutor(2) as pool:
            for most in (4, 4, 4, None):
                if most:
                    kill_and_start(daemon)
                for done in [pool.submit(take, which, most) for which in range(2)]:
                    done.result()
    assert found == [straight, straight]


@pytest.mark.parametrize("bad", [b"too short", b"\xff" * 5056], ids=["too short", "of no generator"])
def test_states_of_no_generator_move_nothing(shared_daemon, bad):
    generator = torch.Generator().manual_seed(3)
    with PrefetchLoader(Numbers(40), 4, shuffle=True, generator=generator) as loader:
        list(loader)
        before, state = generator.get_state(), loader.state_dict()
        with pytest.raises(CallerError, match="generators"):
            loader.load_state_dict({**state, "epoch": 7, "generators": [base64.b64encode(bad).decode()]})
        assert loader.state_dict() == state
        assert torch.equal(generator.get_state(), before)


def test_a_break_leaves_the_generator_as_data_loader_does(shared_daemon):
    generator, theirs = seeded(), seeded()
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=generator) as loader:
        expected = DataLoader(range(120), 4, shuffle=True, generator=theirs)
        for _ in range(2):
            next(iter(loader))
            next(iter(expected))
            assert torch.equal(generator.get_state(), theirs.get_state())
        assert order(loader) == [batch.tolist() for batch in expected]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("taken", [1, 3, 4, None])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_orders_after_an_epoch_that_was_broken_off_are_dataloader_s(shared_daemon, workers, taken):
    """Workers of DataLoader's run the sampler ahead: found with a loop that counts batches and never sees the end."""

    def orders(kind):
        generator = torch.Generator().manual_seed(7)
        loader = kind(Numbers(12), batch_size=3, shuffle=True, generator=generator, num_workers=workers)
        return [[batch[1].tolist() for batch in itertools.islice(loader, taken)] for _ in range(3)]

    assert orders(PrefetchLoader) == orders(DataLoader)
