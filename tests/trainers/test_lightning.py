"""Lightning's Trainer: fit, validate, predict, resume, two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import CallerError
from torch.utils.data import DataLoader, Sampler

from tests.scenario.datasets import Numbers
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import until

pytest.importorskip("lightning")

from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger

from tests.trainers import lightning_ranks
from tests.trainers.lightning_module import Noting, trainer

# Its own about itself, about few workers, and about directories that are there already.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
SAMPLES, ROWS, STEPS, EPOCHS = 20, 4, 5, 3


@pytest.fixture
def loader(trainers_daemon):
    with shuffled() as found:
        yield found


def shuffled(**extra):
    return PrefetchLoader(Numbers(SAMPLES), batch_size=ROWS, shuffle=True, seed=3, **extra)


def expected(epochs, rank=0, world_size=1, samples=SAMPLES):
    return [
        [epoch, step, batch[1].tolist()]
        for epoch in epochs
        for step, batch in enumerate(
            epoch_batches(
                Numbers(samples), epoch, batch_size=ROWS, seed=3, shuffle=True, rank=rank, world_size=world_size
            )
        )
    ]


def test_fit_validates_between_its_epochs(loader, tmp_path):
    module = Noting()
    with PrefetchLoader(Numbers(10), batch_size=ROWS) as validation:
        trainer(tmp_path, max_epochs=EPOCHS).fit(module, loader, validation)
        assert module.seen == expected(range(EPOCHS))
        once = [index.tolist() for _, index in DataLoader(Numbers(10), batch_size=ROWS)]
        # Two batches of them before anything else, to find mistakes early.
        assert module.validated == once[:2] + once * EPOCHS


def test_validate_and_predict(trainers_daemon, tmp_path):
    once = [index.tolist() for _, index in DataLoader(Numbers(10), batch_size=ROWS)]
    module = Noting()
    with PrefetchLoader(Numbers(10), batch_size=ROWS) as loader:
        trainer(tmp_path).validate(module, loader, verbose=False)
        assert module.validated == once
        assert trainer(tmp_path).predict(module, loader) == once


class Writer(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.told, self.told_at_end = [], None

    def write_on_batch_end(self, trainer, module, prediction, batch_indices, *_):
        self.told.append(list(batch_indices))

    def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
        self.told_at_end = [[list(batch) for batch in each] for each in batch_indices]


def test_a_writer_of_predictions_is_told_the_indices(trainers_daemon, tmp_path):
    found = []
    for kind in (DataLoader, PrefetchLoader):
        writer = Writer()
        predicting = trainer(tmp_path, callbacks=[writer])
        for _ in range(2):
            predicting.predict(Noting(), kind(Numbers(10), batch_size=ROWS))
        found.append((writer.told, writer.told_at_end))
    assert found[0] == found[1]
    assert found[1][0] == 2 * [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_writer_cannot_be_told_indices_that_are_drawn_elsewhere(trainers_daemon, tmp_path):
    class Drawn(Sampler):
        """Lightning puts torch's own random sampler in order."""

        def __len__(self) -> int:
            return 10

        def __iter__(self):
            return iter(torch.randperm(10).tolist())

    loader = PrefetchLoader(Numbers(10), sampler=Drawn(), batch_size=ROWS)
    with pytest.raises(CallerError, match="batch_indices, and those of a Drawn"):
        trainer(tmp_path, callbacks=[Writer()]).predict(Noting(), loader)


@pytest.mark.parametrize(
    ("when", "at"),
    [
        ({"every_n_train_steps": 7}, (1, 2)),
        ({"every_n_train_steps": STEPS}, (1, 0)),
        ({"save_on_train_epoch_end": True}, (1, 0)),
        ({"save_on_train_epoch_end": False}, (1, 0)),
    ],
    ids=["mid-epoch", "last batch", "end of epoch", "end of validation"],
)
def test_a_resumed_run_goes_on_where_it_was_saved(trainers_daemon, tmp_path, when, at):
    saving = ModelCheckpoint(tmp_path, filename="{epoch}-{step}", save_top_k=-1, **when)
    with shuffled() as loader, PrefetchLoader(Numbers(10), batch_size=ROWS) as validation:
        trainer(tmp_path, max_epochs=EPOCHS, enable_checkpointing=True, callbacks=[saving]).fit(
            Noting(), loader, validation
        )
    first = min(tmp_path.glob("*.ckpt"), key=lambda path: torch.load(path, weights_only=False)["global_step"])
    module = Noting()
    with shuffled() as loader, PrefetchLoader(Numbers(10), batch_size=ROWS) as validation:
        trainer(tmp_path, max_epochs=EPOCHS).fit(module, loader, validation, ckpt_path=first)
        assert loader.stats()["yielded"] == EPOCHS * STEPS - (at[0] * STEPS + at[1])
    assert module.seen == [each for each in expected(range(EPOCHS)) if tuple(each[:2]) >= at]


def test_a_loader_that_lightning_makes_anew_keeps_its_options(trainers_daemon, tmp_path):
    extra = {"seed": 5, "buffer": 8, "on_error": "skip", "fingerprint_extra": "v2", "lookback": 2}
    with PrefetchLoader(Numbers(10), batch_size=ROWS, stream="named", **extra) as loader:
        run = trainer(tmp_path)
        once = [index.tolist() for _, index in DataLoader(Numbers(10), batch_size=ROWS)]
        assert run.predict(Noting(), loader) == once
        anew = run.predict_dataloaders
        assert anew is not loader
        assert {name: getattr(anew, name) for name in extra} == extra
        assert (anew.spec.buffer_batches, anew.spec.on_error, anew.spec.seed) == (8, "skip", 5)


def test_epochs_that_are_cut_short(trainers_daemon, tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=False)
    settings = {"max_epochs": EPOCHS, "limit_train_batches": 3, "enable_checkpointing": True}
    with shuffled() as loader, PrefetchLoader(Numbers(10), batch_size=ROWS) as validation:
        module = Noting()
        trainer(tmp_path, callbacks=[saving], **settings).fit(module, loader, validation)
    whole = [each for each in expected(range(EPOCHS)) if each[1] < 3]
    assert module.seen == whole
    with shuffled() as loader, PrefetchLoader(Numbers(10), batch_size=ROWS) as validation:
        module = Noting()
        trainer(tmp_path, **settings).fit(module, loader, validation, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert module.seen == [each for each in whole if each[0] > 0]


class Reloading(Noting):
    def train_dataloader(self):
        return shuffled(stream="reloaded")


def test_loaders_that_are_made_for_each_epoch(trainers_daemon, tmp_path):
    module = Reloading()
    trainer(tmp_path, max_epochs=EPOCHS, reload_dataloaders_every_n_epochs=1).fit(module)
    assert module.seen == expected(range(EPOCHS))


# Up to three runs of two processes that import torch and Lightning.
@pytest.mark.timeout(360)
@pytest.mark.preloads("lightning.pytorch")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["replaced", "made in the hook", "made before", "another's share"])
def test_two_ranks(trainers_daemon, tmp_path, how):
    found = run_ranks(trainers_daemon, tmp_path, how)
    if how == "another's share":
        for rank, its in enumerate(found):
            assert f"rank 0 of 3, this process is {rank} of 2" in its["error"]
            assert not its["seen"]
        return
    assert [its["kind"] for its in found] == ["PrefetchLoader"] * 2
    assert [its["buffer"] for its in found] == [8, 8]
    assert found[0]["weights"] == found[1]["weights"]
    if how == "replaced":
        (tmp_path / "theirs").mkdir()
        theirs = run_ranks(trainers_daemon, tmp_path / "theirs", "theirs")
        assert [its["seen"] for its in found] == [its["seen"] for its in theirs]
        (tmp_path / "resumed").mkdir()
        resumed = run_ranks(trainers_daemon, tmp_path / "resumed", "resumed")
        rest = slice(lightning_ranks.SAVED_AFTER, None)
        assert [its["seen"] for its in resumed] == [its["seen"][rest] for its in found]
        return
    for rank, its in enumerate(found):
        # With use_distributed_sampler=False nothing is shared that nobody asked to share.
        share = (rank, 2) if how == "made in the hook" else (0, 1)
        assert its["seen"] == expected(range(lightning_ranks.EPOCHS), *share, lightning_ranks.SAMPLES)


def run_ranks(daemon, directory, how):
    environment = {**daemon.environment, "OMP_NUM_THREADS": "1"}
    # The second rank is the same command, run again by Lightning.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST")}
    # Not as an option: a forked interpreter has none.
    environment["PYTHONWARNINGS"] = "ignore"
    command = [sys.executable, "-m", lightning_ranks.__name__, str(directory), how]
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]


class Collected(Logger):
    """Keeps what is logged."""

    name, version = "collected", 0

    def __init__(self):
        super().__init__()
        self.found = []

    def log_metrics(self, metrics, step=None):
        self.found.append((step, metrics))

    def log_hyperparams(self, *params):
        pass


def test_logger_gets_what_loading_costs(loader, tmp_path):
    class Waiting(Noting):
        def training_step(self, batch, step):
            until(lambda: "prefetchd/ready_batches" in loader.metrics(), "the ring is shown")
            return super().training_step(batch, step)

    logger = Collected()
    trainer(tmp_path, logger=logger, max_epochs=EPOCHS, log_every_n_steps=STEPS).fit(Waiting(), loader)
    found = {step: metrics for step, metrics in logger.found if any(name.startswith("prefetchd/") for name in metrics)}
    assert list(found) == [STEPS * (epoch + 1) for epoch in range(EPOCHS)]
    assert found[STEPS]["prefetchd/ready_batches"] >= 0
