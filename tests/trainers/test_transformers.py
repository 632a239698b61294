"""HF Trainer: train, evaluate, resume, with the loaders that it makes itself taken over."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import transformers.trainer
from prefetchd_client import PrefetchLoader
from prefetchd_client.integrations.transformers import LoadingCallback

from prefetchd.wire.errors import CallerError
from tests.scenario.waiting import until
from tests.trainers.hugging_face import EPOCHS, ROWS, SAMPLES, STEPS, Noting, Prefetching, made

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    trainer = made(Noting, tmp_path_factory.mktemp("theirs"))
    return trainer.train().training_loss, trainer.evaluate()["eval_loss"], trainer.seen


@pytest.fixture(scope="module")
def saved(trainers_daemon, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ours")
    trainer = made(Prefetching, directory)
    return trainer.train().training_loss, trainer.evaluate()["eval_loss"], trainer.seen, directory


def test_it_trains_and_evaluates_as_with_its_own_loaders(theirs, saved):
    assert len(saved[2]) == EPOCHS * STEPS
    assert saved[2] == theirs[2]
    assert saved[:2] == theirs[:2]


@pytest.mark.parametrize("step", [4, STEPS, 8])
def test_a_resumed_run_goes_on_with_the_same_batches(saved, tmp_path, step):
    trainer = made(Prefetching, tmp_path)
    trainer.train(resume_from_checkpoint=str(saved[3] / f"checkpoint-{step}"))
    assert trainer.seen == saved[2][step:]
    assert trainer.evaluate()["eval_loss"] == saved[1]


def test_gradient_accumulation_over_an_incomplete_group(trainers_daemon, tmp_path):
    losses = []
    for kind in (Noting, Prefetching):
        trainer = made(kind, tmp_path / kind.__name__, gradient_accumulation_steps=4)
        losses.append((trainer.train().training_loss, trainer.evaluate()["eval_loss"], trainer.state.global_step))
    assert losses[0] == losses[1]


def test_texts_that_are_grouped_by_length(trainers_daemon, tmp_path):
    grouped = {"train_sampling_strategy": "group_by_length"}
    trainer = made(Prefetching, tmp_path / "whole", **grouped)
    trainer.train()
    for epoch in range(EPOCHS):
        batches = trainer.seen[epoch * STEPS : (epoch + 1) * STEPS]
        assert sorted(text for batch in batches for text in batch) == list(range(1, SAMPLES + 1))
        assert [len(batch) for batch in batches] == [ROWS] * (STEPS - 1) + [2]
    resumed = made(Prefetching, tmp_path / "resumed", **grouped)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-8"))
    assert resumed.seen == trainer.seen[8:]


@pytest.mark.parametrize("use", ["train", "evaluate"])
def test_a_mere_swap_of_its_loader_is_an_error_that_says_what_to_write(trainers_daemon, tmp_path, monkeypatch, use):
    """It hands its loaders to accelerate, which makes plain ones of them: nobody would notice."""
    monkeypatch.setattr(transformers.trainer, "DataLoader", PrefetchLoader)
    with pytest.raises(CallerError, match=r"get_train_dataloader\(\) and get_eval_dataloader\(\).*docs/trainers\.md"):
        getattr(made(Noting, tmp_path), use)()


class Reporting(transformers.TrainerCallback):
    """Stands for what `report_to` names."""

    def __init__(self):
        self.found = []

    def on_step_end(self, args, state, control, train_dataloader=None, **given):
        loader = train_dataloader.base_dataloader
        until(lambda: "prefetchd/ready_batches" in loader.metrics(), "the ring is shown")

    def on_log(self, args, state, control, logs=None, **given):
        self.found.append({**logs})


def test_reports_get_what_loading_costs(trainers_daemon, tmp_path):
    trainer = made(
        Prefetching, tmp_path, logging_strategy="steps", logging_steps=1, max_steps=3, dataloader_num_workers=1
    )
    reporting = Reporting()
    trainer.add_callback(reporting)
    LoadingCallback.add_to(trainer)
    trainer.train()
    assert all("prefetchd/ready_batches" in each for each in reporting.found)
    assert len(reporting.found) >= 3


def test_reports_of_other_loaders_stay_as_they_are(tmp_path):
    trainer = made(Noting, tmp_path, logging_strategy="steps", logging_steps=1, max_steps=2)
    LoadingCallback.add_to(trainer)
    trainer.train()
    assert not any(name.startswith("prefetchd/") for each in trainer.state.log_history for name in each)
