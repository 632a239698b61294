"""Fits, predicts and searches with skorch."""

import json
import pathlib
import warnings

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Callback, Checkpoint, EarlyStopping, LoadInitState, LRScheduler
from skorch.dataset import ValidSplit
from skorch.helper import SliceDataset
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(6)
X = rng.normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


class Net(torch.nn.Module):
    def __init__(self, hidden=8, dropout=0.3, out=2):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, hidden), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(hidden, out)
        )

    def forward(self, x):
        return self.layers(x)


def net(**options):
    torch.manual_seed(8)
    np.random.seed(8)
    options = {
        "max_epochs": 3,
        "lr": 0.05,
        "batch_size": 16,
        "verbose": 0,
        "criterion": torch.nn.CrossEntropyLoss,
    } | options
    return NeuralNetClassifier(Net, **options)


def losses(found):
    return [found.history[:, "train_loss"], found.history[:, "valid_loss"], found.history[:, "valid_acc"]]


def fitted():
    """With a validation after each epoch; predicted in two ways; fitted on."""
    found = net()
    found.fit(X, Y)
    values = [*losses(found), found.predict(X).tolist(), found.predict_proba(X).tolist(), float(found.score(X, Y))]
    found.partial_fit(X, Y)
    return values + losses(found)


def shuffled_by_a_generator():
    """Epochs in an order that a generator gives, with workers."""
    found = net(
        iterator_train__shuffle=True,
        iterator_train__generator=torch.Generator().manual_seed(4),
        iterator_train__num_workers=1,
        iterator_train__persistent_workers=True,
    )
    return losses(found.fit(X, Y))


def classes_given():
    """The loaders' classes, as arguments."""
    found = net(iterator_train=DataLoader, iterator_valid=DataLoader, iterator_train__drop_last=True)
    return losses(found.fit(X, Y))


def shuffled_anew_by_each_fit():
    """How many orders four fits have, each of which makes a loader of its own."""
    orders = [[]]

    class Noted(Callback):
        def on_batch_end(self, net, batch, training, **options):
            orders[-1] += batch[0][:, 0].tolist()

    found = net(iterator_train__shuffle=True, train_split=None, max_epochs=1, callbacks=[Noted()])
    for _ in range(4):
        found.partial_fit(X, Y)
        orders.append([])
    return [len({tuple(each) for each in orders[:-1]}), [sorted(each) for each in orders]]


def saved_and_resumed():
    """The best state is kept, and a second net begins with it."""
    keep = Checkpoint(monitor="valid_loss_best", dirname="kept")
    early = EarlyStopping(patience=1, threshold=0.5)
    first = net(max_epochs=9, callbacks=[keep, early, LRScheduler("StepLR", step_size=1)])
    first.fit(X, Y)
    second = net(callbacks=[LoadInitState(keep)])
    second.fit(X, Y)
    return [len(first.history), *losses(first), *losses(second)]


def stopped():
    """An epoch that is left in its middle, by the key that people press; then fitted on."""

    class Impatient(Callback):
        patience = 5

        def on_batch_end(self, net, batch, training, **options):
            self.patience -= training
            if self.patience == 0:
                raise KeyboardInterrupt

    found = net(max_epochs=4, callbacks=[Impatient()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.fit(X, Y)
    first = [len(found.history), [batch["train_loss"] for batch in found.history[-1]["batches"]]]
    found.partial_fit(X, Y, epochs=2)
    return first + [found.predict_proba(X).tolist()]


def searched():
    """Five nets in a pipeline, each with loaders of its own."""
    pipeline = make_pipeline(StandardScaler(), net(train_split=None, max_epochs=1))
    search = GridSearchCV(pipeline, {"neuralnetclassifier__lr": [0.01, 0.1]}, cv=2, scoring="accuracy")
    search.fit(X, Y)
    return [search.best_params_, search.cv_results_["mean_test_score"].tolist(), search.predict(X).tolist()]


def of_datasets():
    """A dataset of torch's in the place of arrays; a regression; a dictionary of inputs."""
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    found = net(train_split=ValidSplit(4, stratified=False))
    found.fit(data, y=None)
    values = losses(found) + [found.predict_proba(data).tolist()]
    across = cross_val_predict(net(max_epochs=1, train_split=None), SliceDataset(data), Y, cv=2)
    regression = NeuralNetRegressor(Net, module__out=1, max_epochs=2, verbose=0, train_split=None)
    torch.manual_seed(1)
    regression.fit({"x": X}, X[:, :1])
    return values + [across.tolist(), regression.history[:, "train_loss"], regression.predict({"x": X}).tolist()]


if __name__ == "__main__":
    parts = (
        fitted,
        shuffled_by_a_generator,
        shuffled_anew_by_each_fit,
        classes_given,
        saved_and_resumed,
        stopped,
        searched,
        of_datasets,
    )
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
