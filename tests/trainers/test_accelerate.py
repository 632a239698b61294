"""HF Accelerate: what prepare() gives is ours, or it is an error."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import CallerError
from torch.utils.data import DataLoader

from tests.scenario.datasets import Numbers
from tests.scenario.oracle import epoch_batches
from tests.trainers.ranked import run_two_ranks

accelerate = pytest.importorskip("accelerate")

from prefetchd_client.integrations.accelerate import prepare  # noqa: E402

from tests.trainers import accelerated_ranks  # noqa: E402

SAMPLES, ROWS, STEPS = 50, 4, 13


@pytest.fixture
def accelerator():
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture
def loader(trainers_daemon):
    with PrefetchLoader(Numbers(SAMPLES), batch_size=ROWS, shuffle=True, seed=3, num_workers=2) as found:
        yield found


def expected(epoch):
    batches = epoch_batches(Numbers(SAMPLES), epoch, batch_size=ROWS, seed=3, shuffle=True)
    return [index.tolist() for _, index in batches]


def taken(loader):
    return [index.tolist() for _, index in loader]


def test_an_unprepared_loader_is_refused(accelerator, loader):
    with pytest.raises(CallerError, match=r"prefetchd_client\.integrations\.accelerate\.prepare"):
        accelerator.prepare(loader)
    assert taken(loader) == expected(0)


def test_what_is_prepared_is_ours_and_stays_it(accelerator, loader):
    prepared = prepare(accelerator, loader)
    assert accelerator.prepare(prepared) is prepared
    assert isinstance(prepared, PrefetchLoader)
    assert prepared.base_dataloader is loader
    assert prepared.dataset is loader.dataset
    assert (len(prepared), prepared.total_batch_size, prepared.total_dataset_length) == (STEPS, ROWS, SAMPLES)
    assert [taken(prepared) for _ in range(3)] == [expected(epoch) for epoch in range(3)]
    prepared.set_epoch(1)
    assert taken(prepared) == expected(1)
    assert loader.stats()["yielded"] == 4 * STEPS
    with pytest.raises(CallerError, match="not prepared before"):
        prepare(accelerator, prepared)


def test_it_tells_of_the_end_as_accelerates_own_does(accelerator, loader):
    def told(of):
        found = []
        for _ in of:
            state = accelerator.gradient_state
            with accelerator.accumulate():
                found.append(
                    (state.in_dataloader, state.end_of_dataloader, state.remainder, accelerator.sync_gradients)
                )
        return found, accelerator.gradient_state.in_dataloader

    plain = accelerator.prepare(DataLoader(Numbers(SAMPLES), batch_size=ROWS))
    theirs = [told(plain) for _ in range(2)]
    assert [told(prepare(accelerator, loader)) for _ in range(2)] == theirs


def test_batches_are_on_the_device(trainers_daemon):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.state.device = torch.device("meta")
    with PrefetchLoader(Numbers(8), batch_size=4) as loader:
        assert {each.device.type for batch in prepare(accelerator, loader) for each in batch} == {"meta"}
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_skipping_loads_nothing_and_is_ours(accelerator, loader):
    prepared = prepare(accelerator, loader)
    assert taken(prepared) == expected(0)
    skipping = accelerator.skip_first_batches(prepared, 5)
    assert len(skipping) == STEPS - 5
    assert taken(skipping) == expected(1)[5:]
    assert loader.stats()["yielded"] == STEPS + STEPS - 5
    assert taken(prepared) == expected(2)
    prepared.set_epoch(7)
    assert taken(accelerator.skip_first_batches(prepared, STEPS - 1)) == expected(7)[-1:]


def test_skipping_without_preparing_says_that_it_would_not_be_ours(accelerator, loader):
    for skip_first_batches in (accelerator.skip_first_batches, accelerate.skip_first_batches):
        with pytest.raises(CallerError, match=r"skip_first_batches.*plain DataLoader.*prepare"):
            skip_first_batches(loader, 5)
    with pytest.raises(CallerError, match=r"prepare_data_loader.*plain DataLoader.*prepare"):
        accelerate.data_loader.prepare_data_loader(loader)
    assert loader.multiprocessing_context is None
    assert taken(loader) == expected(0)


@pytest.mark.parametrize("skipped", [0, 4])
def test_a_saved_state_is_where_the_loop_stood(accelerator, loader, tmp_path, skipped):
    prepared = prepare(accelerator, loader)
    batches = iter(accelerator.skip_first_batches(prepared, skipped) if skipped else prepared)
    for step in range(skipped, 7):
        assert next(batches)[1].tolist() == expected(0)[step]
    accelerator.save_state(str(tmp_path))
    assert [index.tolist() for _, index in batches] == expected(0)[7:]
    accelerator.load_state(str(tmp_path))
    assert taken(prepared) == expected(0)[7:]
    assert taken(prepared) == expected(1)
    accelerator.save_state(str(tmp_path))
    taken(prepared)
    accelerator.load_state(str(tmp_path))
    assert taken(prepared) == expected(2)


def test_what_is_made_of_it_otherwise_says_so(accelerator, loader):
    prepared = prepare(accelerator, loader)
    other = DataLoader(prepared.dataset, batch_size=4, collate_fn=prepared.collate_fn)
    with pytest.raises(CallerError, match="skip_first_batches"):
        next(iter(other))


def test_what_accelerate_promises_and_we_do_not_is_refused(trainers_daemon, loader):
    configuration = accelerate.DataLoaderConfiguration(dispatch_batches=True)
    with pytest.raises(CallerError, match="dispatch_batches"):
        prepare(accelerate.Accelerator(cpu=True, dataloader_config=configuration), loader)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_a_loader_with_a_sampler(accelerator, trainers_daemon):
    with PrefetchLoader(Numbers(SAMPLES), batch_size=ROWS, sampler=list(range(SAMPLES))) as loader:
        prepared = prepare(accelerator, loader)
        assert taken(prepared) == taken(DataLoader(Numbers(SAMPLES), batch_size=ROWS))
        assert taken(accelerator.skip_first_batches(prepared, 3)) == taken(prepared)[3:]


@pytest.mark.preloads("accelerate", "torch.distributed.run")
@pytest.mark.slow
def test_two_ranks(trainers_daemon, tmp_path):
    found = run_two_ranks(accelerated_ranks, trainers_daemon, tmp_path)
    samples, rows = accelerated_ranks.SAMPLES, accelerated_ranks.ROWS
    for rank, its in enumerate(found):
        for epoch in (0, 1):
            batches = epoch_batches(
                Numbers(samples), epoch, batch_size=rows, seed=3, shuffle=True, rank=rank, world_size=2
            )
            assert its["own"][epoch] == [index.tolist() for _, index in batches]
        assert its["total_batch_size"] == 2 * rows
        assert sorted(index for batch in its["gathered"] for index in batch) == list(range(samples))
        assert its["sharded"] == its["plain"]
        assert "BatchSamplerShard" in its["refused"]
    assert found[0]["trained"] == found[1]["trained"]
