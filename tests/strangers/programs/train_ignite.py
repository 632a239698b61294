"""Trains with ignite's engines: evaluators, checkpoints, early ends, epochs of another length, resumed runs."""

import json
import pathlib

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.engine.deterministic import DeterministicEngine
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Accuracy, Loss, RunningAverage
from ignite.utils import manual_seed
from torch.utils.data import DataLoader, Dataset, RandomSampler

CRITERION = torch.nn.CrossEntropyLoss()


class Noisy(Dataset):
    """Rows whose class is hidden in them."""

    def __init__(self, count):
        self.rows = torch.randn(count, 6, generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], int(self.rows[index].sum() > 0), index


def without_index(batch, device=None, non_blocking=False):
    return batch[0], batch[1]


def made():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def noting(engine, found):
    @engine.on(Events.ITERATION_COMPLETED)
    def note(engine):
        found.append([engine.state.epoch, engine.state.iteration, engine.state.output, engine.state.batch[2].tolist()])


def trained():
    """An evaluation of both sets after each epoch, and an early end when the loss no longer falls."""
    training = idist.auto_dataloader(Noisy(26), batch_size=8, num_workers=2, drop_last=True)
    validation = idist.auto_dataloader(Noisy(12), batch_size=5)
    model, optimizer = made()
    trainer = create_supervised_trainer(model, optimizer, CRITERION, prepare_batch=without_index)
    metrics = {"accuracy": Accuracy(), "loss": Loss(CRITERION)}
    evaluator = create_supervised_evaluator(model, metrics, prepare_batch=without_index)
    RunningAverage(output_transform=float).attach(trainer, "running")
    early = EarlyStopping(1, lambda engine: -engine.state.metrics["loss"], trainer, min_delta=0.05)
    evaluator.add_event_handler(Events.COMPLETED, early)
    found = []
    noting(trainer, found)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        for loader in (training, validation):
            found.append(dict(evaluator.run(loader).metrics))
        found.append(engine.state.metrics["running"])

    trainer.run(training, max_epochs=6)
    return found


def of_another_length():
    """Epochs that are longer and shorter than the data, one that is given up, a run that is ended and goes on."""
    found = []
    for length in (5, 2, None):
        model, optimizer = made()
        trainer = create_supervised_trainer(model, optimizer, CRITERION, prepare_batch=without_index)
        noting(trainer, found)

        @trainer.on(Events.ITERATION_COMPLETED(once=4))
        def give_up(engine):
            engine.terminate_epoch()

        @trainer.on(Events.ITERATION_COMPLETED(once=7))
        def end(engine):
            engine.terminate()

        loader = DataLoader(Noisy(18), batch_size=6)
        trainer.run(loader, max_epochs=3, epoch_length=length)
        trainer.run(loader, max_epochs=5, epoch_length=length)
    return found


def stepped(model, optimizer):
    def step(engine, batch):
        loss = CRITERION(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def resumed_in_order():
    """A deterministic engine: stopped in its second epoch, and resumed there from what was saved."""
    loader = DataLoader(Noisy(20), batch_size=6, num_workers=2)
    found = []
    for is_resumed in (False, True):
        manual_seed(9)
        model, optimizer = made()
        trainer = DeterministicEngine(stepped(model, optimizer))
        noting(trainer, found)
        saved = {"model": model, "optimizer": optimizer, "trainer": trainer}
        if is_resumed:
            (file,) = pathlib.Path("kept").glob("*.pt")
            Checkpoint.load_objects(saved, torch.load(file, weights_only=False))
        else:
            saver = DiskSaver("kept", create_dir=True)
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), Checkpoint(saved, saver))
        trainer.run(loader, max_epochs=3)
    assert found[-6:] == found[6:12]
    return found


def resumed_and_shuffled():
    """Shuffled by torch's global generator: which rows each epoch has, also one that a run is resumed with."""
    loader = DataLoader(Noisy(20), batch_size=4, sampler=RandomSampler(range(20)))
    seen = []
    for first in (0, 5):
        torch.manual_seed(3)
        trainer = DeterministicEngine(lambda engine, batch: batch[2].tolist())
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output))
        trainer.load_state_dict({"iteration": first, "max_epochs": 2, "epoch_length": 5, "rng_states": None})
        trainer.run(loader, max_epochs=2)
    epochs = (seen[:5], seen[5:10], seen[10:])
    return [sorted(row for batch in epoch for row in batch) for epoch in epochs]


def taken_by_hand():
    """An engine over an iterator that its handlers renew, as for several sources."""
    loaders = [DataLoader(Noisy(size), batch_size=4, num_workers=1) for size in (8, 12)]
    iterators = [iter(loader) for loader in loaders]

    def step(engine, index):
        try:
            batch = next(iterators[index])
        except StopIteration:
            iterators[index] = iter(loaders[index])
            batch = next(iterators[index])
        return batch[2].tolist()

    found = []
    engine = Engine(step)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: found.append(engine.state.output))
    engine.run([0, 1, 1, 0, 1], max_epochs=3)
    return found


if __name__ == "__main__":
    parts = (trained, of_another_length, resumed_in_order, resumed_and_shuffled, taken_by_hand)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
