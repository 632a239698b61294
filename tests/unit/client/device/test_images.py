"""Crops, flips and normalisation of whole batches: each picture its own, as if they were done one by one."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client.device.images import CropFlipNormalize, Draws
from prefetchd_client.seeding import seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def module(size=24, device="cpu", **arguments):
    return CropFlipNormalize(size, mean=MEAN, std=STD, **arguments).to(device)


def pictures(count=64, height=32, width=40, device="cpu"):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator).to(device)


def one_by_one(transform: CropFlipNormalize, batch: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Padded, cropped, mirrored and normalised by plain indexing."""
    found = []
    for picture, top, left, flip in zip(batch, draws.tops.tolist(), draws.lefts.tolist(), draws.flips.tolist()):
        padded = torch.nn.functional.pad(picture, [transform.padding] * 4)
        crop = padded[:, top : top + transform.size[0], left : left + transform.size[1]]
        crop = crop.flip(-1) if flip else crop
        found.append((crop.float() * transform.scale[0] + transform.shift[0]).to(transform.dtype))
    return torch.stack(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize("size", [24, (32, 40), (1, 17)])
def test_the_same_as_one_by_one(device, padding, size):
    transform, batch = module(size, device, padding=padding), pictures(device=device)
    draws = transform.draw(batch)
    assert torch.equal(transform.applied(batch, draws), one_by_one(transform, batch, draws))


def test_the_same_as_torchvision():
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    transform, batch = module(padding=4), pictures(8)
    draws = transform.draw(batch)
    for place, found in enumerate(transform.applied(batch, draws)):
        theirs = functional.crop(
            functional.pad(batch[place], [4]), int(draws.tops[place]), int(draws.lefts[place]), 24, 24
        )
        theirs = functional.horizontal_flip(theirs) if draws.flips[place] else theirs
        theirs = functional.normalize(functional.to_dtype(theirs, torch.float32, scale=True), MEAN, STD)
        torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)


def test_each_picture_draws_for_itself():
    """The same picture 512 times: if draws were shared in any way, results would be too."""
    transform = module(16, padding=8)
    batch = pictures(1).expand(512, -1, -1, -1)
    with seeded(1, None):
        draws = transform.draw(batch)
    # 33 tops by 41 lefts by 2: two thirds of 512 draws or more are alone with what they drew.
    assert len({*zip(draws.tops.tolist(), draws.lefts.tolist(), draws.flips.tolist())}) > 400
    assert {*draws.tops.tolist()} == {*range(33)}
    assert {*draws.lefts.tolist()} == {*range(41)}
    assert 200 < int(draws.flips.sum()) < 312
    together = torch.stack([draws.tops.float(), draws.lefts.float(), draws.flips.float()])
    assert torch.corrcoef(together).fill_diagonal_(0).abs().max() < 0.15


def test_what_one_picture_is_does_not_depend_on_the_others():
    transform, batch = module(padding=4), pictures()
    draws = transform.draw(batch)
    whole = transform.applied(batch, draws)
    other = batch.flip(0).clone()
    other[5] = batch[5]
    assert torch.equal(transform.applied(other, draws)[5], whole[5])


def test_the_same_seed_draws_the_same():
    transform, batch = module(padding=4), pictures()
    runs = []
    for seed in (1, 1, 2):
        with seeded(seed, None):
            runs.append(transform(batch))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("batch", ["tensor", "list", "tuple", "dict"])
def test_batches_of_pictures_and_more(batch):
    images, labels = pictures(4), torch.arange(4)
    made = {"tensor": images, "list": [images, labels], "tuple": (images, labels), "dict": {"x": images, "y": labels}}
    found = module(key="x" if batch == "dict" else 0)(made[batch])
    assert type(found) is type(made[batch])
    parts = [found] if batch == "tensor" else [*(found.values() if batch == "dict" else found)]
    assert (parts[0].shape, parts[0].dtype) == ((4, 3, 24, 24), torch.float32)
    assert all(each is labels for each in parts[1:])


def test_dtype_and_memory_format():
    found = module(dtype=torch.bfloat16, memory_format=torch.channels_last)(pictures(4))
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (torch.zeros(2, 3, 32, 32), "torch.float32 in 4 dimensions; allowed: uint8"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), "in 3 dimensions"),
        (torch.zeros(2, 3, 20, 32, dtype=torch.uint8), r"\(20, 32\) are smaller than crops of \(24, 24\)"),
    ],
)
def test_what_does_not_fit(wrong, told):
    with pytest.raises(ValueError, match=told):
        module()(wrong)
