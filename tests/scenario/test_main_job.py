"""The main job with everything real: a daemon, its workers, and this process as the trainer."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_convert, get_worker_info

from prefetchd.wire.errors import CallerError
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX
from tests.scenario.datasets import Dice, Made, Numbers, SeldomDice, equal
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import open_fds

pytestmark = [pytest.mark.usefixtures("shared_daemon"), pytest.mark.executed]


def test_every_batch_is_what_the_formulas_say():
    with PrefetchLoader(Dice(60), batch_size=8, shuffle=True, seed=7, buffer=8) as loader:
        for epoch in range(3):
            assert equal([*map(_clone, loader)], epoch_batches(Dice(60), epoch, batch_size=8, seed=7, shuffle=True))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sample_that_draws_after_thousands_that_did_not_has_its_own_seed(workers):
    arguments = {"batch_size": 64, "shuffle": True, "seed": 7}
    with PrefetchLoader(
        SeldomDice(2000), num_workers=workers, buffer=8, fingerprint_extra=workers, **arguments
    ) as loader:
        assert equal([*map(_clone, loader)], epoch_batches(SeldomDice(2000), 0, **arguments))


def test_the_number_of_workers_changes_no_byte(daemon):
    daemon.start("--workers", "7")
    expected = epoch_batches(Dice(100), 0, batch_size=16, seed=3, shuffle=True)
    for workers in (1, 2, 3, 7):
        arguments = {"batch_size": 16, "shuffle": True, "seed": 3, "buffer": 6, "fingerprint_extra": workers}
        with PrefetchLoader(Dice(100), num_workers=workers, **arguments) as loader:
            assert equal([*map(_clone, loader)], expected)
            _stream_when(
                daemon,
                loader.spec.name,
                lambda stream, count=workers: stream["by_rows"] and len(stream["workers"]) == count,
            )


def test_ranks_share_an_epoch():
    for rank in range(3):
        with PrefetchLoader(Dice(50), batch_size=4, shuffle=True, seed=1, rank=rank, world_size=3, buffer=6) as loader:
            expected = epoch_batches(Dice(50), 0, batch_size=4, seed=1, shuffle=True, rank=rank, world_size=3)
            assert equal([*map(_clone, loader)], expected)


def test_batches_are_zero_copy_and_their_slots_follow_their_tensors():
    with PrefetchLoader(Numbers(64), batch_size=4, buffer=8) as loader:
        kept, _ = next(iterator := iter(loader))
        view = kept[1:]
        del kept
        for place, (batch, _) in enumerate(iterator):
            assert torch.equal(batch[0], torch.full((4,), 4 + place * 4))
        assert torch.equal(view, torch.tensor([[1] * 4, [2] * 4, [3] * 4])), "a held view was overwritten"
        assert loader.stats()["private_copies"] == 0


def test_a_loop_that_hoards_gets_private_copies_and_no_deadlock():
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=6) as loader:
        everything = list(loader)
        assert equal(everything, epoch_batches(Numbers(400), 0, batch_size=4))
        assert loader.stats()["private_copies"] >= 100 - 3


def test_what_a_holder_writes_reaches_nobody():
    with PrefetchLoader(Numbers(64), batch_size=4, buffer=4) as loader:
        for epoch in range(4):
            loader.set_epoch(0 if epoch % 2 else epoch)
            for place, (batch, _) in enumerate(loader):
                assert torch.equal(batch[0], torch.full((4,), place * 4))
                batch.fill_(-1)


def test_early_breaks_many_epochs_and_lengths():
    with PrefetchLoader(Numbers(50), batch_size=8, shuffle=True, drop_last=True, buffer=8) as loader:
        assert len(loader) == 6
        for epoch in range(6):
            for place, (_, index) in enumerate(loader):
                expected = epoch_batches(Numbers(50), epoch, batch_size=8, shuffle=True, drop_last=True)[place]
                assert torch.equal(index, expected[1])
                if place == epoch:
                    break


def test_living_iterators_are_independent():
    with PrefetchLoader(Numbers(40), batch_size=4, shuffle=True, buffer=6) as loader:
        pairs = [(one[1].clone(), other[1].clone()) for one, other in zip(loader, loader)]
        for place, (one, other) in enumerate(pairs):
            assert torch.equal(one, epoch_batches(Numbers(40), 0, batch_size=4, shuffle=True)[place][1])
            assert torch.equal(other, epoch_batches(Numbers(40), 1, batch_size=4, shuffle=True)[place][1])
        outer = iter(loader)
        next(outer)
        for _ in range(3):
            assert sum(1 for _ in loader) == 10
            next(outer)


def test_iter_as_a_probe_consumes_nothing():
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6) as loader:
        for _ in range(10):
            iter(loader)
        assert torch.equal(next(iter(loader))[1], torch.arange(4))


def test_wrap_takes_everything_over():
    dataset = Numbers(30)
    plain = DataLoader(dataset, batch_size=4, num_workers=2, drop_last=True, collate_fn=_reversed_collate)
    with PrefetchLoader.wrap(plain, buffer=6) as loader:
        assert isinstance(loader, DataLoader)
        assert loader.dataset is dataset
        assert len(loader) == len(plain)
        assert equal([*map(_clone, loader)], list(plain))
    with PrefetchLoader.wrap(DataLoader(dataset, batch_size=4, shuffle=True), seed=5, buffer=6) as loader:
        assert equal([*map(_clone, loader)], epoch_batches(dataset, 0, batch_size=4, seed=5, shuffle=True))


def test_wrap_keeps_a_sampler_over_something_else_and_its_generator():
    dataset = Numbers(30)
    with PrefetchLoader.wrap(DataLoader(dataset, 4, sampler=SequentialSampler(range(5))), buffer=6) as loader:
        assert [index.tolist() for _, index in loader] == [[0, 1, 2, 3], [4]]
    with PrefetchLoader.wrap(DataLoader(dataset, 4, sampler=RandomSampler(range(5))), buffer=6) as loader:
        assert sorted(int(each) for _, index in loader for each in index) == list(range(5))
    batches = []
    for kind in (DataLoader, lambda *given, **named: PrefetchLoader.wrap(DataLoader(*given, **named), buffer=6)):
        generator = torch.Generator().manual_seed(11)
        loader = kind(dataset, 4, sampler=RandomSampler(dataset, generator=generator))
        batches.append([index.tolist() for _ in range(2) for _, index in loader])
        batches.append(generator.get_state().tolist())
    assert batches[:2] == batches[2:]
    loader.close()


def test_wrap_keeps_a_collate_fn_that_is_the_other_default():
    plain = DataLoader(Numbers(8), batch_size=4, collate_fn=default_convert)
    with PrefetchLoader.wrap(plain, buffer=6) as loader:
        assert equal([*map(_clone, loader)], list(plain))


def test_the_seed_is_the_one_that_the_user_set():
    with PrefetchLoader(Dice(10), batch_size=5, buffer=6) as loader:
        assert (loader.spec.seed, loader.spec.seed_source) == (0, "default")
    torch.manual_seed(1234)
    with PrefetchLoader(Dice(10), batch_size=5, buffer=6) as loader:
        assert (loader.spec.seed, loader.spec.seed_source) == (1234, "torch")


def drawn_after_dataloader(seed, count, **arguments):
    """What a script draws next that has seeded torch before an epoch of such a loader."""
    torch.manual_seed(seed)
    list(DataLoader(Numbers(8), **arguments))
    return torch.rand(count)


def test_the_trainers_own_randomness_goes_on_as_after_dataloader():
    expected = drawn_after_dataloader(99, 5)
    torch.manual_seed(99)
    with PrefetchLoader(Dice(20), batch_size=5, buffer=6) as loader:
        list(loader)
        assert torch.equal(torch.rand(5), expected)


def test_batches_outlive_the_loader_and_nothing_outlives_them():
    gc.collect()
    before, others = open_fds(os.getpid()), _rings_mapped()
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=4) as loader:
        kept = next(iter(loader))[0]
    del loader
    gc.collect()
    assert torch.equal(kept, torch.arange(4).view(4, 1).expand(4, 4))
    assert open_fds(os.getpid()) > before, "the ring's, and the session that keeps the slot"
    assert _rings_mapped() > others, "it is in the ring"
    del kept
    gc.collect()
    assert open_fds(os.getpid()) == before
    assert _rings_mapped() <= others, "nor is the ring mapped"


def _rings_mapped():
    """The rings that this process has mapped: a test that failed before keeps its own."""
    return {line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if SEGMENT_PREFIX in line}


def test_large_arrays_travel_beside_the_pickle():
    table = np.arange(1 << 20, dtype=np.int64)
    rows = torch.arange(1 << 20).view(-1, 4)
    with PrefetchLoader(Made(_Lookup(table, rows), 20), batch_size=5, buffer=6) as loader:
        for number, row in loader:
            assert np.array_equal(number.numpy(), table[number.numpy()])
            assert torch.equal(row, rows[number])


def test_worker_output_comes_to_the_trainers_stderr(capfd):
    with PrefetchLoader(Made(_speak, 8), batch_size=4, buffer=6) as loader:
        for _ in range(3):
            list(loader)
    said = capfd.readouterr().err
    assert "sample 3 speaks" in said
    assert "[prefetchd worker" in said


def test_worker_init_fn_is_called_once_in_each_worker_over_epochs(tmp_path):
    calls = tmp_path / "calls"

    def note(worker):
        with calls.open("a") as file:
            file.write(f"{worker} {os.getpid()}\n")

    def called():
        return [tuple(map(int, line.split())) for line in calls.read_text().splitlines()] if calls.exists() else []

    dataset = Made(lambda index: torch.tensor(os.getpid()), 200)
    makers = set()
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=6, worker_init_fn=note) as loader:
        while len(called()) < 2:  # on a busy machine one worker may make whole epochs before the other has started
            makers.update(pid for batch in loader for pid in batch.tolist())
        makers.update(pid for _ in range(2) for batch in loader for pid in batch.tolist())
    assert sorted(worker for worker, _ in called()) == [0, 1]
    assert len({pid for _, pid in called()}) == 2
    assert makers <= {pid for _, pid in called()}


def test_inline_makes_the_same_batches_in_this_process(monkeypatch):
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    expected = drawn_after_dataloader(4, 2, shuffle=True)
    with PrefetchLoader(Dice(30), batch_size=8, shuffle=True, seed=7) as loader:
        for epoch in range(2):
            assert equal(list(loader), epoch_batches(Dice(30), epoch, batch_size=8, seed=7, shuffle=True))
        torch.manual_seed(4)
        next(iter(loader))
        assert torch.equal(torch.rand(2), expected)


def test_inline_calls_worker_init_fn_as_a_worker_does(monkeypatch):
    told = []
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    expected = drawn_after_dataloader(4, 2)
    torch.manual_seed(4)
    dataset = Numbers(8)
    with PrefetchLoader(
        dataset,
        batch_size=4,
        num_workers=1,
        worker_init_fn=lambda place: told.append((place, get_worker_info().dataset, torch.rand(9))),
    ) as loader:
        assert len(list(loader)) == 2
    # Once more for each time that it is seen to have changed: what it appends to is its own.
    assert {each[:2] for each in told} == {(0, dataset)}
    assert torch.equal(torch.rand(2), expected), "the trainer's own randomness goes on"


def test_a_script_whose_dataset_is_in_main(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import collections, torch
            from torch.utils.data import Dataset
            from prefetchd_client import PrefetchLoader

            Pair = collections.namedtuple("Pair", "image label")

            class Mine(Dataset):
                scale = 3
                def __len__(self): return 12
                def __getitem__(self, index): return Pair(torch.ones(2) * index * self.scale, str(index))

            loader = PrefetchLoader(Mine(), batch_size=4, buffer=6)
            for batch in loader:
                assert type(batch) is Pair, type(batch)
                print(batch.image[:, 0].tolist(), batch.label)
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "[12.0, 15.0, 18.0, 21.0] ('4', '5', '6', '7')"


@pytest.mark.parametrize("use", ["next", "set_epoch", "load_state_dict", "refresh"])
def test_a_forked_child_gets_a_clear_error_and_disturbs_nothing(use):
    with PrefetchLoader(Numbers(80), batch_size=4, buffer=4) as loader:
        iterator = iter(loader)
        first = next(iterator)[1].clone()
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                uses = {
                    "next": lambda: next(iterator),
                    "set_epoch": lambda: loader.set_epoch(3),
                    "load_state_dict": lambda: loader.load_state_dict(loader.state_dict()),
                    "refresh": loader.refresh,
                }
                uses[use]()
                os.write(writing, b"no error")
            except Exception as error:
                os.write(writing, type(error).__name__.encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b"ForkedError"
        rest = [index.clone() for _, index in iterator]
        assert torch.equal(torch.cat([first, *rest]), torch.arange(80))


def test_status_tells_of_the_stream(shared_daemon):
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6, stream="shown") as loader:
        next(iter(loader))
        report = _stream_when(
            shared_daemon, "shown", lambda stream: stream["ring"] and stream["consumers"][0].get("yielded")
        )
        assert report["consumers"][0]["pid"] == os.getpid()
        assert report["ring"]["slots"] == 6
        assert "shown" in shared_daemon.command("status").stdout


def _stream_when(daemon, name, holds):
    for _ in range(200):
        found = json.loads(daemon.command("status", "--json").stdout)
        stream = next((each for each in found["streams"] if each["name"] == name), None)
        if stream is not None and holds(stream):
            return stream
    raise AssertionError(found)


class _Lookup:
    def __init__(self, table, rows):
        self.table = table
        self.rows = rows

    def __call__(self, index):
        return int(self.table[index]), self.rows[index]


def _speak(index):
    print(f"sample {index} speaks")
    return index


def _reversed_collate(samples):
    return [index for _, index in reversed(samples)]


def _clone(batch):
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, list):
        return [_clone(each) for each in batch]
    return batch


def test_fresh_drops_what_an_earlier_run_left(daemon):
    arguments = {"batch_size": 4, "stream": "kept", "buffer": 6}
    with PrefetchLoader(Numbers(40), **arguments) as loader:
        list(loader)
        _stream_when(daemon, "kept", lambda stream: stream["produced_batches"] >= 13)
    with PrefetchLoader(Numbers(40), **arguments) as loader:
        produced = _stream_when(daemon, "kept", lambda stream: True)["produced_batches"]
        assert produced >= 13, "an unchanged stream keeps its ring"
    with PrefetchLoader(Numbers(40), fresh=True, **arguments) as loader:
        assert equal([*map(_clone, loader)], epoch_batches(Numbers(40), 0, batch_size=4))
        assert _stream_when(daemon, "kept", lambda stream: True)["consumed_batches"] <= 10
        with pytest.raises(CallerError, match="fresh"):
            PrefetchLoader(Numbers(40), fresh=True, **arguments)


def test_more_iterators_than_slots():
    expected = [[batch[1] for batch in epoch_batches(Numbers(12), epoch, batch_size=4)] for epoch in range(9)]
    with PrefetchLoader(Numbers(12), batch_size=4, buffer=4) as loader:
        iterators = [iter(loader) for _ in range(9)]
        for step in range(3):
            for epoch, iterator in reversed([*enumerate(iterators)]) if step else enumerate(iterators):
                assert torch.equal(next(iterator)[1], expected[epoch][step])


def test_a_run_that_closed_in_mid_epoch_is_continued_where_it_stopped(daemon):
    arguments = {"batch_size": 4, "stream": "kept", "buffer": 6}
    with PrefetchLoader(Numbers(400), **arguments) as loader:
        iterator = iter(loader)
        for _ in range(50):
            next(iterator)
    found = _stream_when(daemon, "kept", lambda stream: stream["produced_batches"] >= 55)
    assert found["lingering"]
    assert found["produced_batches"] <= 50 + 12, "it went on in another epoch"


class Noted(Numbers):
    """Writes down each sample that is made."""

    def __init__(self, length: int, notes: Path) -> None:
        super().__init__(length)
        self.notes = notes

    def __getitem__(self, index: int):
        with self.notes.open("a") as notes:
            notes.write(f"{index}\n")
        return super().__getitem__(index)


def test_a_new_trainer_that_names_its_epoch_late_finds_the_ring_warm(daemon, tmp_path):
    arguments = {"batch_size": 4, "stream": "kept", "buffer": 6}
    dataset = Noted(80, tmp_path / "made")
    with PrefetchLoader(dataset, **arguments) as loader:
        list(loader)
        _stream_when(daemon, "kept", lambda stream: stream["ring"] and stream["ring"]["ready"] >= 3)
    with PrefetchLoader(dataset, **arguments) as loader:
        _stream_when(daemon, "kept", lambda stream: len(stream["consumers"]) == 1 and not stream["lingering"])
        loader.set_epoch(1)
        iterator = iter(loader)
        assert torch.equal(next(iterator)[1], torch.arange(4))
        _stream_when(daemon, "kept", lambda stream: stream["ring"] and stream["ring"]["ready"] >= 5)
        made = Counter(map(int, dataset.notes.read_text().split()))
        # Without a trainer half of the ring is for its epoch, half for one that begins again: these samples were made
        # in the first epoch, for the beginning, and for the epoch, for which they were ready when it was named.
        assert max(made[sample] for sample in range(3 * 4)) <= 3, "what was ready was made twice"
        # The epoch's next three batches have no room meanwhile: they may have been made as the first trainer let its
        # batches go, and have given way to the beginning when it was gone.
        assert max(made[sample] for sample in range(3 * 4, 80)) <= 3
