"""Pictures decoded by their crops, from a folder and from shards: the same bytes whoever makes them, and torchvision's
pixels but for rounding."""

from __future__ import annotations

import io
import tarfile

import pytest
import torch

pytest.importorskip("nvidia.nvimgcodec")

from prefetchd_client import PrefetchLoader
from prefetchd_client.images import Decode
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from tests.unit.client.images.pictures import (
    TRAIN,
    TRAIN_BYTES,
    VALIDATE_BYTES,
    by_torchvision,
    encoded,
    farthest,
    picture,
)

PICTURES = 24
BATCH = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes; a PNG, a grey picture and a progressive one among the JPEGs."""
    root = tmp_path_factory.mktemp("pictures")
    for number in range(PICTURES):
        directory = root / ("cat" if number % 2 else "dog")
        directory.mkdir(exist_ok=True)
        image = picture(100 + 3 * number, 90 + 5 * number, seed=number)
        if number == 3:
            image.save(directory / f"{number:02d}.png")
        else:
            kind = {5: image.convert("L")}.get(number, image)
            (directory / f"{number:02d}.jpg").write_bytes(encoded(kind, progressive=number == 7))
    return root


def batches_of(dataset, epochs=2, **options):
    """All batches' own copies, in a ring begun anew."""
    with PrefetchLoader(dataset, BATCH, seed=5, buffer=6, fresh=True, **options) as loader:
        return [(pixels.clone(), labels.clone()) for _ in range(epochs) for pixels, labels in loader]


@pytest.mark.parametrize("transform", [TRAIN, VALIDATE_BYTES], ids=["train", "validate"])
def test_the_number_of_workers_changes_no_byte(shared_daemon, folder, transform):
    dataset = ImageFolder(str(folder), Decode(transform), loader=str)
    first, *others = (batches_of(dataset, shuffle=True, num_workers=workers) for workers in (1, 2, 3))
    assert len(first) == 2 * PICTURES // BATCH
    for other in others:
        for (pixels, labels), (others_pixels, others_labels) in zip(first, other, strict=True):
            assert torch.equal(pixels, others_pixels)
            assert torch.equal(labels, others_labels)


def test_crops_and_flips_are_those_of_the_same_seed_in_torchvision(shared_daemon, folder):
    ours = batches_of(ImageFolder(str(folder), Decode(TRAIN_BYTES), loader=str), shuffle=True, num_workers=2)
    theirs = batches_of(ImageFolder(str(folder), TRAIN_BYTES), shuffle=True, num_workers=2)
    exact = batches_of(
        ImageFolder(str(folder), Decode(TRAIN_BYTES, exact=True), loader=str), shuffle=True, num_workers=1
    )
    for (pixels, labels), (theirs_pixels, theirs_labels), (exact_pixels, _) in zip(ours, theirs, exact, strict=True):
        assert torch.equal(labels, theirs_labels)
        assert farthest(pixels, theirs_pixels) <= 1
        assert torch.equal(exact_pixels, theirs_pixels)


@pytest.mark.parametrize("workers", [0, 2])
def test_so_they_are_in_dataloader(folder, workers):
    found = []
    for dataset in (ImageFolder(str(folder), Decode(TRAIN_BYTES), loader=str), ImageFolder(str(folder), TRAIN_BYTES)):
        generator = torch.Generator().manual_seed(3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            found.append(list(DataLoader(dataset, BATCH, True, num_workers=workers, generator=generator)))
    for (pixels, labels), (theirs_pixels, theirs_labels) in zip(*found, strict=True):
        assert torch.equal(labels, theirs_labels)
        assert farthest(pixels, theirs_pixels) <= 1


def test_a_file_that_was_cut_short_is_left_to_on_error(shared_daemon, tmp_path):
    (tmp_path / "cat").mkdir()
    for number in range(8):
        whole = encoded(picture(seed=number))
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(whole[: len(whole) // 2] if number == 5 else whole)
    dataset = ImageFolder(str(tmp_path), Decode(TRAIN_BYTES), loader=str)
    with pytest.raises(OSError, match="truncated"):
        batches_of(dataset, epochs=1, num_workers=1)
    found = batches_of(dataset, epochs=1, num_workers=2, on_error="skip")
    assert [len(labels) for _, labels in found] == [4, 3]


def test_bytes_of_webdataset_s_shards_are_decoded(shared_daemon, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(8):
            for kind, content in (("jpg", encoded(picture(seed=number))), ("cls", str(number).encode())):
                entry = tarfile.TarInfo(f"{number:03d}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    pipeline = webdataset.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False).to_tuple("jpg", "cls")
    transform = v1.Compose([v1.Resize(80), v1.CenterCrop(64), v1.PILToTensor()])
    found = batches_of(pipeline.map_tuple(Decode(transform), int), epochs=1, num_workers=1)
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(8))
    for pixels, labels in found:
        for row, label in zip(pixels, labels.tolist()):
            assert farthest(row, by_torchvision(transform, encoded(picture(seed=label)))) <= 1
