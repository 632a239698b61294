"""What libraries do with DataLoader by inheritance works with PrefetchLoader in its place: each base gives the same."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from tests.scenario.datasets import Numbers

pytestmark = pytest.mark.usefixtures("shared_daemon")


class Endless:
    """A sampler again and again: what timm and ultralytics put in its place."""

    def __init__(self, sampler) -> None:
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def keeping_one_iterator(base):
    class Keeping(base):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            self._DataLoader__initialized = False
            if self.batch_sampler is None:
                self.sampler = Endless(self.sampler)
            else:
                self.batch_sampler = Endless(self.batch_sampler)
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.sampler.sampler if self.batch_sampler is None else self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return Keeping


def collating_by_a_method(base):
    class Collating(base):
        def __init__(self, offset, data, **options) -> None:
            self.offset = offset
            super().__init__(data, collate_fn=self.collate, **options)
            self.scale = 3

        def collate(self, samples):
            return self.scale * torch.stack([index for _, index in map(as_tensors, samples)]) + self.offset

    return Collating


def as_tensors(sample):
    return tuple(map(torch.as_tensor, sample))


class Dynamic(Sampler):
    """Batches whose number nobody knows: its length is an error, as PyTorch Geometric's."""

    def __len__(self) -> int:
        raise ValueError("how many cannot be told")

    def __iter__(self):
        return iter([[0, 1, 2], [3], [4, 5, 6, 7]])


def indices(batches) -> list:
    return [index.tolist() for _, index in batches]


@pytest.mark.parametrize("batch_size", [4, None])
def test_one_iterator_over_an_endless_sampler(batch_size):
    found = []
    for base in (DataLoader, PrefetchLoader):
        loader = keeping_one_iterator(base)(Numbers(20), batch_size=batch_size)
        epochs = [[torch.as_tensor(index).tolist() for _, index in loader] for _ in range(3)]
        assert type(loader.iterator).__name__ != "_SingleProcessDataLoaderIter" or base is DataLoader
        loader.reset()
        epochs.append([torch.as_tensor(index).tolist() for _, index in loader])
        found.append((len(loader), epochs))
    assert found[0] == found[1]
    loader.close()


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_a_method_of_the_loader_collates(monkeypatch, start):
    monkeypatch.setenv("PREFETCHD_START", start)
    found = []
    for base in (DataLoader, PrefetchLoader):
        loader = collating_by_a_method(base)(100, Numbers(20), batch_size=4)
        found.append([batch.tolist() for _ in range(2) for batch in loader])
    assert found[0] == found[1]
    loader.close()


def test_a_sampler_whose_length_is_an_error():
    assert indices(PrefetchLoader(Numbers(8), batch_sampler=Dynamic())) == [[0, 1, 2], [3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="cannot be told"):
        len(PrefetchLoader(Numbers(8), batch_sampler=Dynamic()))


def test_a_loader_made_anew_of_another_s_public_attributes():
    """As ignite does it."""
    loader = PrefetchLoader(Numbers(20), batch_size=4, shuffle=True, seed=3)
    assert len(list(loader)) == 5
    parameters = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    for name in ("batch_size", "sampler", "drop_last", "batch_sampler", "dataset_kind"):
        parameters.pop(name, None)
    again = type(loader)(batch_sampler=BatchSampler(SequentialSampler(range(20)), 5, False), **parameters)
    assert indices(again) == [list(range(at, at + 5)) for at in range(0, 20, 5)]
    assert again.seed == 3


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "timeout": 9, "stream": "has options", "buffer": 6}])
def test_a_loader_s_public_attributes_are_arguments_or_a_dataloader_s(options):
    loader = PrefetchLoader(Numbers(20), batch_size=4, **options)
    assert len(list(loader)) == 5
    public = {name for name in vars(loader) if not name.startswith("_")}
    arguments = inspect.signature(PrefetchLoader.__init__).parameters
    theirs = vars(DataLoader(Numbers(20), batch_size=4))
    assert public - arguments.keys() - theirs.keys() == set()


def test_an_iterator_tells_how_many_it_has_yielded():
    for base in (DataLoader, PrefetchLoader):
        iterator = iter(base(Numbers(20), batch_size=4))
        assert iterator._num_yielded == 0
        next(iterator)
        next(iterator)
        assert iterator._num_yielded == 2


def test_an_iterator_has_no_worker_processes_to_wait_for():
    """Programs end or join those of an iterator: ours are none of this process's."""
    iterator = iter(PrefetchLoader(Numbers(20), batch_size=4, num_workers=2))
    next(iterator)
    assert list(iterator._workers) == []
    assert len(indices(iterator)) == 4


def test_an_iterator_ends_with_its_workers():
    """Trainers that leave an epoch early shut them down, and drop the iterator."""
    for base in (DataLoader, PrefetchLoader):
        loader = base(Numbers(20), batch_size=4, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        iterator._shutdown_workers()
        iterator._shutdown_workers()
        assert len(indices(loader)) == 5
    assert next(iterator, None) is None


class Converting(PrefetchLoader):
    """As PyTorch Geometric's loaders are: what an iterator gives is not what the loop gets."""

    def _get_iterator(self):
        return (("converted", batch) for batch in super()._get_iterator())


def test_a_subclass_that_wraps_the_iterator_is_asked_for_it(shared_daemon):
    """Found as a loop that got a SamplerOutput in place of a graph."""
    with Converting(Numbers(8), batch_size=4) as loader:
        for _ in range(2):
            assert [word for word, _ in loader] == ["converted"] * 2


ARGUMENTS = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "by a worker": {"num_workers": 1},
    "by one that stays": {"num_workers": 1, "shuffle": True, "persistent_workers": True},
    "by a sampler": {"sampler": RandomSampler(range(8))},
}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_what_the_script_draws_beside_it_is_what_it_draws_beside_dataloader(shared_daemon, arguments):
    """A dropout's masks, and so the losses of an epoch in order."""

    def drawn(kind):
        torch.manual_seed(7)
        loader = kind(Numbers(8), batch_size=4, **arguments)
        found = []
        for _ in range(3):
            for _ in loader:
                found.append(torch.rand(1).item())
        return found

    with torch.random.fork_rng():
        assert drawn(PrefetchLoader) == drawn(DataLoader)


ONCE = """
import warnings, sys
from {module} import {loader}
class Rows:
    def __len__(self): return 8
    def __getitem__(self, index): return index
def train():
    warnings.warn("the loop's own", stacklevel=1)
loader = {loader}(Rows(), batch_size=4)
for epoch in range(4):
    for batch in loader:
        train()
"""


@pytest.mark.parametrize(
    ("module", "loader"), [("prefetchd_client", "PrefetchLoader"), ("torch.utils.data", "DataLoader")]
)
def test_a_warning_of_the_loop_is_shown_once(shared_daemon, module, loader):
    """Found as a warning in each epoch: looking at the dataset had Python forget which it had shown."""
    code = ONCE.format(module=module, loader=loader)
    done = subprocess.run(
        [sys.executable, "-c", code], env=shared_daemon.environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("the loop's own") == 1
