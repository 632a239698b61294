"""Streams of every kind on their way to a device; and loaders that ask for one which is not there, or for the CPU."""

from __future__ import annotations

import os

import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.loader.iterator import PrefetchIterator

from prefetchd.wire.errors import CallerError
from tests.conftest import daemon_aside
from tests.scenario.datasets import Made, Numbers, equal
from tests.scenario.device_streams import expected, loader_of
from tests.scenario.iterables import Steps

pytestmark = pytest.mark.usefixtures("shared_daemon")


def test_batches_of_several_slots(bench):
    with PrefetchLoader(Made(_of_many_sizes, 60), batch_size=None, buffer=12, device=bench.name) as loader:
        found = [bench.read(each) for each in loader]
        assert [each().tolist() for each in found] == [_of_many_sizes(index).tolist() for index in range(60)]


def _of_many_sizes(index: int) -> torch.Tensor:
    return torch.full((1000 if index < 9 else 1000 * (index % 4 + 1),), index)


def test_two_loaders_of_one_stream(bench):
    common = {"device": bench.name, "stream": f"shared {bench.backend.device} {id(bench)}", "buffer": 12}
    with loader_of(Numbers(100), **common) as one, loader_of(Numbers(100), **common) as other:
        found = [([bench.read(x) for x in left], [bench.read(x) for x in right]) for left, right in zip(one, other)]
        for place, (left, right) in enumerate(found):
            assert equal([each() for each in left], expected(0)[place])
            assert equal([each() for each in right], expected(0)[place])


def test_an_iterable_dataset_goes_on_where_it_was_yielded(bench, tmp_path):
    dataset = Steps(tmp_path / "notes")
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=8, device=bench.name) as loader:
        iterator = iter(loader)
        first = [bench.read(next(iterator)) for _ in range(3)]
        state = loader.state_dict()
        rest = [bench.read(each) for each in iterator]
        whole = [each().tolist() for each in first + rest]
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=8, device=bench.name, fresh=True) as loader:
        loader.load_state_dict(state)
        found = [bench.read(each) for each in loader]
        assert [each().tolist() for each in found] == whole[3:]


@pytest.mark.parametrize("store", ["ring", "files"])
def test_an_attached_loader(bench, tmp_path_factory, store):
    config = tmp_path_factory.mktemp("config") / "streams.toml"
    text = '[streams.declared]\ndataset = "tests.scenario.declared_datasets:numbers"\nbatch_size = 4\nbuffer = 4\n'
    files = f'store = {{files = "{tmp_path_factory.mktemp("files")}"}}\n'
    config.write_text(text + (files if store == "files" else ""))
    with daemon_aside(tmp_path_factory.mktemp("daemon")) as daemon:
        daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        daemon.start("--config", str(config), "--workers", "2")
        for arguments in ({"device": bench.name}, {"pin_memory": True}):
            with PrefetchLoader.attach("declared", socket=str(daemon.socket), **arguments) as loader:
                found = []
                for numbers, _ in loader:
                    assert "device" in arguments or bench.is_pinned(numbers)
                    found.append(bench.read(numbers if "device" in arguments else bench.to_device(numbers)))
                assert [each()[:, 0].tolist() for each in found] == [
                    each.tolist() for each in torch.arange(50).split(4)
                ]


# --- without a device ---


def test_without_any_of_it_next_is_the_plain_one():
    with loader_of(Numbers(40)) as loader:
        assert type(iter(loader)) is PrefetchIterator


def test_a_transform_on_the_cpu():
    runs = []
    for _ in range(2):
        with loader_of(Numbers(40), device="cpu", device_transform=lambda batch: batch[0] + torch.rand(4)) as loader:
            runs.append(list(loader))
            assert loader.state_dict()["epoch"] == 1
    assert equal(*runs)
    assert not any(each.requires_grad for each in runs[0])
    assert len({tuple((one - two[0]).flatten().tolist()) for one, two in zip(runs[0], expected(0, 40))}) == 10


def test_device_cpu_alone_is_as_without():
    with loader_of(Numbers(40), device="cpu") as loader:
        assert equal([[each.clone() for each in batch] for batch in loader], expected(0, 40))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinned_memory_without_an_accelerator_warns_as_torch_does():
    theirs = torch.utils.data.DataLoader(Numbers(40), batch_size=4, pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory") as told:
        iter(theirs)
    with loader_of(Numbers(40), pin_memory=True) as loader, pytest.warns(UserWarning, match="pin_memory") as ours:
        assert equal([[each.clone() for each in batch] for batch in loader], expected(0, 40))
    assert [str(each.message) for each in ours] == [str(each.message) for each in told]
    assert ours[0].filename == __file__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there():
    with pytest.raises(CallerError, match=r"device='cuda:1'; torch .* sees 0 CUDA devices here"):
        loader_of(Numbers(40), device="cuda:1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"device": "teapot"}, "device='teapot'; allowed: 'cpu', 'cuda'"),
        ({"device": "meta"}, "device='meta'; allowed: 'cpu', 'cuda'"),
        ({"device_transform": len}, "device_transform= without device="),
        ({"device": "cpu", "device_transform": 3}, "device_transform=3; allowed: a callable"),
    ],
)
def test_arguments_that_are_refused(arguments, told):
    with pytest.raises(CallerError, match=told):
        loader_of(Numbers(40), **arguments)
