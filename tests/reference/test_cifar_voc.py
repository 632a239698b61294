"""R3: torchvision's v2 transforms on CIFAR-10's images, and a filtered VOC whose labels are strings."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("torchvision")

from PIL import Image

from examples import cifar_voc
from tests.reference.comparing_loaders import EPOCHS, assert_same_batches, output_of
from tests.scenario.oracle import SAMPLE, derive, seed_all

SEED = 7


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    """VOCdevkit as it is unpacked, small."""
    directory = tmp_path_factory.mktemp("voc")
    root = directory / "VOCdevkit" / "VOC2012"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / part).mkdir(parents=True)
    names = []
    for number, name in enumerate(["dog", "person", "boat", "car", "sofa", "bird", "bus"] * 5):
        pixels = torch.randint(0, 256, (60, 80, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.numpy()).save(root / "JPEGImages" / f"{number:06}.jpg")
        box = "<bndbox><xmin>5</xmin><ymin>4</ymin><xmax>70</xmax><ymax>50</ymax></bndbox>"
        objects = f"<object><name>{name}</name>{box}</object>"
        (root / "Annotations" / f"{number:06}.xml").write_text(f"<annotation>{objects}</annotation>")
        names.append(f"{number:06}")
    (root / "ImageSets" / "Main" / "train.txt").write_text("\n".join(names))
    return directory


class Seeded(Dataset):
    """Sample (ordinal, index), drawn with the seed that docs/formats.md gives it."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.epoch = 0

    def __getitem__(self, place):
        ordinal, index = place
        seed_all(derive(SEED, SAMPLE, self.epoch, ordinal) >> 1)
        return self.dataset[index]


def as_dataloader_makes_them(loader):
    """DataLoader's batches of each epoch, where each sample's draws are known."""
    seeded = Seeded(loader.dataset)
    epochs = []
    for epoch in range(EPOCHS):
        seeded.epoch = epoch
        # DataLoader draws its base seed from the generator before the sampler does.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        places = [(ordinal, index) for ordinal, index in enumerate(loader.sampler)]
        batches = [places[first : first + 16] for first in range(0, len(places), 16)]
        epochs.append(list(DataLoader(seeded, batch_sampler=batches)))
    return epochs


def test_batches_without_chance_are_dataloaders(shared_daemon, voc):
    theirs, ours = (cifar_voc.made_loaders(kind, voc=voc) for kind in (DataLoader, PrefetchLoader))
    ours.pop("training").close()
    theirs.pop("training")
    assert len(ours["voc"].dataset) == 25
    assert_same_batches(theirs, ours)


def test_labels_that_are_strings_arrive_as_such(shared_daemon, voc):
    loaders = cifar_voc.made_loaders(PrefetchLoader, voc=voc)
    for loader in loaders.values():
        loader.close()
    with PrefetchLoader(cifar_voc.VocAsCifar(voc), batch_size=16) as loader:
        _, names = next(iter(loader))
    assert type(names) is tuple or type(names) is list
    assert set(names) <= set(cifar_voc.CIFAR_NAMES.values())


def test_every_training_batch_is_dataloaders(shared_daemon):
    torch.manual_seed(SEED)
    expected = as_dataloader_makes_them(cifar_voc.made_loaders(DataLoader)["training"])
    torch.manual_seed(SEED)
    loaders = cifar_voc.made_loaders(PrefetchLoader)
    loaders["evaluation"].close()
    with loaders["training"] as training:
        for epoch in range(EPOCHS):
            found = list(training)
            assert len(found) == len(expected[epoch])
            for (pictures, labels), (theirs, their_labels) in zip(found, expected[epoch]):
                assert torch.equal(labels, their_labels)
                assert torch.equal(pictures, theirs)


def test_the_example_trains(shared_daemon, voc):
    found = output_of("cifar_voc", shared_daemon, "--epochs", "1", "--voc", str(voc))
    assert "objects of VOC: ['automobile', 'bird', 'dog', 'ship', 'truck']" in found
