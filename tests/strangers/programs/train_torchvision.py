"""Loops in the style of torchvision's references: classification, detection and segmentation, on small files."""

import itertools
import json
import pathlib
from xml.etree import ElementTree as ET

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder, VOCDetection, VOCSegmentation, wrap_dataset_for_transforms_v2
from torchvision.transforms import v2


def write_pictures():
    """Two classes in folders, and a set as of the Visual Object Classes of 2012."""
    rng = np.random.default_rng(3)
    for split, count in (("train", 11), ("val", 5)):
        for label in ("cat", "dog"):
            folder = pathlib.Path("data", split, label)
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 255, (36, 40, 3), np.uint8)).save(folder / f"{number}.jpg")
    root = pathlib.Path("data", "VOCdevkit", "VOC2012")
    for folder in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    names = [f"2012_{number:06}" for number in range(9)]
    for number, name in enumerate(names):
        width, height = (30, 20) if number % 3 else (20, 30)
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(root / "JPEGImages" / f"{name}.jpg")
        mask = Image.fromarray(rng.integers(0, 3, (height, width), np.uint8), "P")
        mask.putpalette(bytes(range(256)) * 3)
        mask.save(root / "SegmentationClass" / f"{name}.png")
        boxes = [("dog", 2 + each, 3, 9 + each, 12) for each in range(1 + number % 3)]
        (root / "Annotations" / f"{name}.xml").write_text(annotation(name, width, height, boxes))
    for folder in ("Main", "Segmentation"):
        (root / "ImageSets" / folder / "train.txt").write_text("\n".join(names))


def annotation(name, width, height, boxes):
    top = ET.Element("annotation")
    ET.SubElement(top, "filename").text = f"{name}.jpg"
    size = ET.SubElement(top, "size")
    for key, value in (("width", width), ("height", height), ("depth", 3)):
        ET.SubElement(size, key).text = str(value)
    for label, *corners in boxes:
        item = ET.SubElement(top, "object")
        ET.SubElement(item, "name").text = label
        box = ET.SubElement(item, "bndbox")
        for key, value in zip(("xmin", "ymin", "xmax", "ymax"), corners):
            ET.SubElement(box, key).text = str(value)
    return ET.tostring(top, encoding="unicode")


def evaluation():
    steps = [v2.PILToTensor(), v2.CenterCrop(32), v2.ToDtype(torch.float, scale=True), v2.Normalize((0.5,), (0.2,))]
    return v2.Compose(steps)


def made():
    torch.manual_seed(1)
    model = torchvision.models.shufflenet_v2_x0_5(num_classes=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train_epoch(model, optimizer, loader, found):
    model.train()
    for pictures, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(pictures), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    return [torch.nn.functional.cross_entropy(model(pictures), labels).item() for pictures, labels in loader]


def classified():
    """A sampler with a generator; an evaluation after each epoch, a checkpoint; the second epoch again from that."""
    data = [ImageFolder(f"data/{split}", evaluation()) for split in ("train", "val")]
    found = []
    for first in (0, 1):
        generator = torch.Generator().manual_seed(2)
        model, optimizer = made()
        if first:
            kept = torch.load("kept.pt")
            for part, state in ((model, kept["model"]), (optimizer, kept["optimizer"])):
                part.load_state_dict(state)
            generator.set_state(kept["generator"])
        sampler = torch.utils.data.RandomSampler(data[0], generator=generator)
        loader = torch.utils.data.DataLoader(data[0], 5, sampler=sampler, num_workers=2)
        test = torch.utils.data.DataLoader(data[1], 4, sampler=torch.utils.data.SequentialSampler(data[1]))
        for epoch in range(first, 2):
            train_epoch(model, optimizer, loader, found)
            found += evaluate(model, test)
            if epoch == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(states | {"generator": generator.get_state()}, "kept.pt")
    length = len(found) // 3
    assert found[-length:] == found[length:-length]
    return found


def by_ranks():
    """What each of two ranks gets, that are told their epoch."""
    data = ImageFolder("data/train", evaluation())
    found = []
    for rank, epoch in itertools.product(range(2), range(2)):
        sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=2, rank=rank)
        batches = torch.utils.data.BatchSampler(sampler, 4, drop_last=True)
        loader = torch.utils.data.DataLoader(data, batch_sampler=batches, num_workers=1)
        sampler.set_epoch(epoch)
        found.append([pictures.sum((1, 2, 3)).tolist() for pictures, _ in loader])
        sampler.set_epoch(epoch + 5)
        found.append([pictures.sum((1, 2, 3)).tolist() for pictures, _ in loader])
    return found


class Repeated(torch.utils.data.Sampler):
    """Each picture three times, in an order of the epoch's."""

    def __init__(self, count):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(3).tolist())

    def __len__(self):
        return 3 * self.count


def augmented():
    """Random crops, policies and mixing: their form; which labels there are does not depend on them."""
    steps = v2.Compose(
        [
            v2.RandomResizedCrop(32),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float, scale=True),
            v2.RandomErasing(0.5),
        ]
    )
    data = ImageFolder("data/train", steps)
    mixing = v2.RandomChoice([v2.MixUp(num_classes=2), v2.CutMix(num_classes=2)])
    collates = {"plain": None, "mixed": lambda samples: mixing(*torch.utils.data.default_collate(samples))}
    found = []
    for collate in collates.values():
        sampler = Repeated(len(data))
        loader = torch.utils.data.DataLoader(data, 6, sampler=sampler, collate_fn=collate, num_workers=2)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for pictures, labels in loader:
                values = labels.tolist() if collate is None else [list(labels.shape), round(labels.sum().item(), 3)]
                found.append([list(pictures.shape), pictures.std().item() > 0, values])
    return found


class ByShape(torch.utils.data.BatchSampler):
    """Batches of pictures that stand, or of such that lie."""

    def __init__(self, sampler, groups, batch_size):
        self.sampler, self.groups, self.batch_size = sampler, groups, batch_size

    def __iter__(self):
        waiting = {}
        for index in self.sampler:
            group = waiting.setdefault(self.groups[index], [])
            group.append(index)
            if len(group) == self.batch_size:
                yield waiting.pop(self.groups[index])
        yield from waiting.values()

    def __len__(self):
        return sum(-(-self.groups.count(group) // self.batch_size) for group in set(self.groups))


def together(samples):
    return tuple(zip(*samples))


def detected():
    """Boxes and pictures of unequal sizes, collated to tuples, batched by shape."""
    steps = v2.Compose(
        [v2.ToImage(), v2.Resize((24,)), v2.ToDtype(torch.float, scale=True), v2.SanitizeBoundingBoxes()]
    )
    data = VOCDetection("data", image_set="train", download=False, transforms=steps)
    data = wrap_dataset_for_transforms_v2(data, target_keys=("boxes", "labels"))
    groups = [picture.shape[1] > picture.shape[2] for picture, _ in data]
    order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(4))
    loader = torch.utils.data.DataLoader(
        data, batch_sampler=ByShape(order, groups, 2), num_workers=2, collate_fn=together
    )
    found = [len(loader)]
    for _ in range(2):
        for pictures, targets in loader:
            assert all(isinstance(picture, tv_tensors.Image) for picture in pictures)
            found.append([picture.sum().item() for picture in pictures])
            found += [
                [target["boxes"].tolist(), target["boxes"].canvas_size, str(target["boxes"].format)]
                + [target["labels"].tolist()]
                for target in targets
            ]
    return found


def padded(samples):
    """Pictures and masks in one tensor each, as large as the largest."""
    found = []
    for values, fill in zip(zip(*samples), (0, 255)):
        height, width = (max(value.shape[axis] for value in values) for axis in (-2, -1))
        whole = values[0].new_full((len(values), *values[0].shape[:-2], height, width), fill)
        for value, place in zip(values, whole):
            place[..., : value.shape[-2], : value.shape[-1]].copy_(value)
        found.append(whole)
    return found


def segmented():
    """Masks beside pictures, padded; losses of a small model, and an epoch that is left."""
    steps = v2.Compose([v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float, "others": None}, scale=True)])
    data = wrap_dataset_for_transforms_v2(VOCSegmentation("data", image_set="train", transforms=steps))
    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=padded, num_workers=1)
    torch.manual_seed(5)
    model = torch.nn.Conv2d(3, 3, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for stop in (1, None, None):
        for pictures, masks in itertools.islice(loader, stop):
            loss = torch.nn.functional.cross_entropy(model(pictures), masks.long().squeeze(1), ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


if __name__ == "__main__":
    write_pictures()
    parts = (classified, by_ranks, augmented, detected, segmented)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
