"""Trains with fastai's Learner, on torch's loaders and on loaders of its own."""

import json
import pathlib

import torch
from fastai.basics import (
    Callback,
    CancelEpochException,
    CancelFitException,
    DataLoaders,
    Learner,
    Transform,
    accuracy,
)
from fastai.callback.all import EarlyStoppingCallback, SaveModelCallback
from fastai.data.core import TfmdDL
from fastai.data.load import DataLoader as OwnLoader
from torch.utils.data import DataLoader, TensorDataset

rows = torch.randn(52, 6, generator=torch.Generator().manual_seed(1))
data = TensorDataset(rows, (rows.sum(1) > 0).long())
training, validation = torch.utils.data.Subset(data, range(40)), torch.utils.data.Subset(data, range(40, 52))


def loaders(**options):
    return DataLoaders(DataLoader(training, batch_size=8, **options), DataLoader(validation, batch_size=5))


def learner(found, callbacks=()):
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
    return Learner(found, model, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, cbs=[*callbacks])


def results(found):
    return [[float(value) for value in epoch] for epoch in found.recorder.values] + found_losses(found)


def found_losses(found):
    return [[loss.item() for loss in found.recorder.losses]]


def fitted():
    """Three epochs in order with their validations; validated and predicted; saved, loaded and fitted on."""
    one = learner(loaders(num_workers=2))
    with one.no_bar(), one.no_logging():
        one.fit(2, lr=0.05)
        values = results(one)
        values.append([float(value) for value in one.validate()])
        values += [each.tolist() for each in one.get_preds(dl=one.dls.valid)]
        values += [each.tolist() for each in one.get_preds(dl=one.dls.train)]
        one.save("kept")
        other = learner(loaders())
        other.load("kept")
        with other.no_bar(), other.no_logging():
            other.fit_one_cycle(1, 0.05)
    return values + results(other)


def by_a_generator():
    """Shuffled, by a generator of a seed."""
    one = learner(loaders(shuffle=True, generator=torch.Generator().manual_seed(6)))
    with one.no_bar(), one.no_logging():
        one.fit(2, lr=0.05)
    return results(one)


class Leaving(Callback):
    """Leaves the second epoch after two batches, and the fit in the third."""

    def after_batch(self):
        if self.training and self.epoch == 1 and self.iter == 1:
            raise CancelEpochException
        if self.training and self.epoch == 2 and self.iter == 2:
            raise CancelFitException


def left_early():
    """Epochs and fits that callbacks end, and a fit after them."""
    values = []
    for callback in (Leaving(), EarlyStoppingCallback(patience=1, min_delta=0.5), SaveModelCallback(fname="best")):
        one = learner(loaders(), [callback])
        with one.no_bar(), one.no_logging():
            one.fit(4, lr=0.05)
            one.remove_cb(callback)
            one.fit(1, lr=0.05)
        values += results(one)
    return values


def rate_found():
    """The search for a learning rate: a fit of a given number of batches, over the ends of epochs."""
    one = learner(loaders(num_workers=1))
    with one.no_bar(), one.no_logging():
        found = one.lr_find(num_it=12, show_plot=False)
        one.fit(1, lr=0.05)
    return [found.valley, *results(one)]


class Doubled(Transform):
    def encodes(self, row: torch.Tensor):
        return row * 2 if row.is_floating_point() else row


def of_its_own():
    """Its own loaders, which are none of torch's."""
    with_workers = DataLoaders(OwnLoader(training, bs=8, num_workers=1), TfmdDL(validation, bs=5, after_item=Doubled()))
    one = learner(with_workers)
    with one.no_bar(), one.no_logging():
        one.fit(2, lr=0.05)
        values = results(one)
        values += [each.tolist() for each in one.get_preds(dl=with_workers.valid.new(shuffle=False))]
    return values


if __name__ == "__main__":
    parts = (fitted, by_a_generator, left_early, rate_found, of_its_own)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
