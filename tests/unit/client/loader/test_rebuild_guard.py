"""Who would make a plain DataLoader of a loader is told what to write instead. The real ones: tests/trainers."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client.loader.rebuild_guard import RebuildGuard
from torch.utils.data import TensorDataset

from prefetchd.wire.errors import CallerError

PROGRAM = "def {function}(loader):\n    return loader.{attribute}\n"


def called_in(module: str, loader: RebuildGuard, attribute: str, function: str = "call"):
    """Asks for an attribute as a function of that module would."""
    namespace = {"__name__": module}
    exec(PROGRAM.format(function=function, attribute=attribute), namespace)
    return namespace[function](loader)


@pytest.fixture
def loader():
    return RebuildGuard(TensorDataset(torch.arange(4)))


def test_a_trainer_of_transformers_is_told_of_its_own_way(loader):
    with pytest.raises(CallerError, match="HF Trainer would make a plain DataLoader"):
        called_in("transformers.trainer", loader, "_is_accelerate_prepared")


def test_accelerate_is_told_of_prepare(loader):
    with pytest.raises(CallerError, match=r"accelerator.prepare\(\) would make a plain DataLoader"):
        called_in("accelerate.accelerator", loader, "_is_accelerate_prepared")


@pytest.mark.parametrize("function", ["skip_first_batches", "prepare_data_loader"])
def test_functions_that_make_another_loader_are_known_by_their_names(loader, function):
    with pytest.raises(CallerError, match=rf"{function}\(\) would make a plain DataLoader"):
        called_in("accelerate.data_loader", loader, "multiprocessing_context", function)


@pytest.mark.parametrize(
    ("module", "function"), [("accelerate.data_loader", "something"), ("of.others", "skip_first_batches")]
)
def test_others_have_what_a_dataloader_has(loader, module, function):
    assert called_in(module, loader, "multiprocessing_context", function) is None
