"""Trains, validates and resumes a small model of timm's on JPEGs in folders, with each kind of loader that it makes."""

import hashlib
import json
import pathlib

import numpy as np
import timm
import timm.data
import timm.utils
import torch
from PIL import Image
from timm.models import resume_checkpoint

SIZE = (3, 32, 32)


def write_pictures():
    """Two classes of twelve each to train on, of four each to validate."""
    for split, count in (("train", 12), ("validation", 4)):
        for label in ("cat", "dog"):
            folder = pathlib.Path("data", split, label)
            folder.mkdir(parents=True)
            for number in range(count):
                rng = np.random.default_rng([count, number, label == "cat"])
                picture = Image.fromarray(rng.integers(0, 255, (40, 48, 3), np.uint8))
                picture.save(folder / f"{number}.jpg")


def loader(split, **options):
    dataset = timm.data.create_dataset("", root="data", split=split, is_training=split == "train")
    options = {"batch_size": 4, "num_workers": 2, "is_training": split == "train"} | options
    return timm.data.create_loader(dataset, SIZE, device=torch.device("cpu"), **options)


def digest(tensor):
    return hashlib.md5(tensor.contiguous().numpy().tobytes()).hexdigest()


def made():
    torch.manual_seed(1)
    model = timm.create_model("test_resnet", num_classes=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def trained(model, optimizer, batches, losses):
    model.train()
    for images, labels in batches:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


@torch.inference_mode()
def validated(model, batches):
    model.eval()
    meter = timm.utils.AverageMeter()
    for images, labels in batches:
        meter.update(torch.nn.functional.cross_entropy(model(images), labels).item(), len(labels))
    return meter.avg


def trained_and_resumed():
    """Epochs in order, so that losses can be compared: two in one go, and the second again from the first's end."""
    batches = loader("train", is_training=False)
    validation = loader("validation", use_prefetcher=False)
    model, optimizer = made()
    saver = timm.utils.CheckpointSaver(model, optimizer, checkpoint_dir=".", recovery_dir=".")
    losses = []
    for epoch in range(2):
        trained(model, optimizer, batches, losses)
        losses.append(validated(model, validation))
        if epoch == 0:
            saver.save_checkpoint(epoch)
    model, optimizer = made()
    first = resume_checkpoint(model, "last.pth.tar", optimizer)
    again = []
    for _ in range(first, 2):
        trained(model, optimizer, batches, again)
        again.append(validated(model, validation))
    return [losses, again]


def shuffled(**options):
    """Which pictures each epoch has; its last one is left after two batches."""
    batches = loader("train", no_aug=True, **options)
    epochs = [sorted(digest(image) for images, _ in batches for image in images) for _ in range(3)]
    iterator = iter(batches)
    broken_off = [len(next(iterator)[0]) for _ in range(2)]
    return epochs, broken_off, len(batches)


def of_many_epochs():
    return shuffled(use_multi_epochs_loader=True)


def of_many_epochs_in_order():
    """Its one iterator goes on where another loop has left it."""
    batches = loader("validation", use_multi_epochs_loader=True, batch_size=3)
    found = [[digest(images) for images, _ in batches] for _ in range(3)]
    for images, _ in batches:
        found.append(digest(images))
        break
    return found + [[digest(images) for images, _ in batches]]


def augmented():
    """AugMix in three splits, erasing and mixing: all random, so only what form it has."""
    found = []
    mixing = timm.data.FastCollateMixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=2)
    for options in (
        {"num_aug_splits": 3, "auto_augment": "augmix-m5-w2"},
        {"collate_fn": mixing, "re_prob": 1.0, "auto_augment": "rand-m9-mstd0.5-inc1"},
        {"use_prefetcher": False, "color_jitter": 0.4, "worker_seeding": "all"},
    ):
        dataset = timm.data.create_dataset("", root="data", split="train")
        if "num_aug_splits" in options:
            dataset = timm.data.AugMixDataset(dataset, num_splits=3)
        batches = timm.data.create_loader(
            dataset, SIZE, 4, is_training=True, num_workers=2, device=torch.device("cpu"), **options
        )
        for epoch in range(2):
            if epoch == 1 and options.get("collate_fn") is mixing:
                batches.mixup_enabled = False
            for images, labels in batches:
                found.append((list(images.shape), str(images.dtype), list(labels.shape), images.std().item() > 0))
    return found


def of_scheduled_sizes():
    """Batches of several sizes, whose sampler gives pairs of an index and a size."""
    batches = loader("train", no_aug=True, input_size_choices=[32, 48], batch_size_choices=[4, 2])
    found = []
    for epoch in range(2):
        batches.batch_sampler.set_epoch(epoch)
        found.append([list(images.shape) for images, _ in batches])
    return found


if __name__ == "__main__":
    write_pictures()
    parts = (
        trained_and_resumed,
        shuffled,
        of_many_epochs,
        of_many_epochs_in_order,
        augmented,
        of_scheduled_sizes,
    )
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
