"""What Decode makes of a JPEG is what torchvision makes of it, from the same seed: the same rectangles and flips, the
same types, and pixels that differ by what resizing rounds."""

from __future__ import annotations

import pickle

import pytest
import torch

pytest.importorskip("nvidia.nvimgcodec")

from hypothesis import given, settings
from hypothesis import strategies as st
from prefetchd_client.images import Decode
from prefetchd_client.images.geometry import Plan, resized, take_geometry
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

from tests.unit.client.images.pictures import (
    MEAN,
    STD,
    TRAIN,
    TRAIN_BYTES,
    VALIDATE_BYTES,
    by_torchvision,
    encoded,
    farthest,
    picture,
)

BICUBIC = v1.InterpolationMode.BICUBIC
BYTES = {
    "train": TRAIN_BYTES,
    "train, bicubic": v1.Compose([v1.RandomResizedCrop((48, 80), interpolation=BICUBIC), v1.PILToTensor()]),
    "train, v2": v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToPureTensor()]),
    "validate": VALIDATE_BYTES,
    "validate, bicubic": v1.Compose([v1.Resize(80, interpolation=BICUBIC), v1.CenterCrop((64, 50)), v1.PILToTensor()]),
    "validate, enlarged": v1.Compose([v1.Resize(300), v1.CenterCrop(256), v1.PILToTensor()]),
    "validate, to the edge": v1.Compose([v1.Resize(80), v1.CenterCrop(80), v1.PILToTensor()]),
    "validate, v2": v2.Compose([v2.Resize(80), v2.CenterCrop(64), v2.PILToTensor()]),
    "resize": v1.Compose([v1.Resize((50, 70)), v1.PILToTensor()]),
    "resize, bounded": v1.Compose([v1.Resize(64, max_size=70), v1.PILToTensor()]),
    "as it is": v1.Compose([v1.Resize((187, 250)), v1.PILToTensor()]),
}
STEP = {"train, bicubic": 2, "validate, bicubic": 2}
"""How far a pixel is at most, in steps of 255, where it is more than one."""

FLOATS = {
    "ToTensor": [v1.ToTensor()],
    "ToTensor, Normalize": [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "v2.ToTensor": [v1.ToTensor(), v2.Normalize(MEAN, STD)],
    "ConvertImageDtype": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)],
    "ToDtype of bytes": [v1.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    "ToDtype without a scale": [v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize(MEAN, STD)],
    "ToDtype": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    "ToDtype, unmarked": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()],
    "halves": [v2.ToImage(), v2.ToDtype(torch.float16, scale=True), v2.Normalize(MEAN, STD)],
    "doubles": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float64), v1.Normalize(MEAN, STD)],
    "RandomErasing": [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(1.0)],
    "a mean for all channels": [v1.ToTensor(), v1.Normalize([0.5], [0.5])],
}


def both(transform, source: bytes, seed: int) -> tuple[object, object]:
    """What Decode and torchvision make of it; both have drawn as much."""
    torch.manual_seed(seed)
    ours = Decode(transform)(source)
    after = torch.rand(1)
    torch.manual_seed(seed)
    theirs = by_torchvision(transform, source)
    assert after == torch.rand(1), "another number of draws"
    return ours, theirs


@pytest.fixture(autouse=True)
def _generators_of_other_tests():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("name", BYTES)
def test_pixels_are_torchvision_s_but_for_rounding(name):
    source = encoded(picture())
    distances = []
    for seed in range(20):
        ours, theirs = both(BYTES[name], source, seed)
        assert type(ours) is type(theirs)
        assert farthest(ours, theirs) <= STEP.get(name, 1)
        distances.append((ours.int() - theirs.int()).abs().double().mean())
    assert sum(distances) / len(distances) < 0.1


@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 200), (200, 3), (17, 33), (64, 64), (640, 427)])
def test_so_they_are_whatever_the_picture_s_shape(width, height):
    source = encoded(picture(width, height))
    for transform in (TRAIN_BYTES, VALIDATE_BYTES):
        for seed in range(10):
            ours, theirs = both(transform, source, seed)
            assert farthest(ours, theirs) <= 1


@pytest.mark.parametrize("steps", FLOATS.values(), ids=FLOATS)
def test_equal_pixels_make_equal_floats(steps):
    """At the picture's own size nothing is rounded: all bits are torchvision's."""
    source = encoded(picture())
    for seed in range(4):
        flipped = v1.Compose([v1.Resize((187, 250)), v1.RandomHorizontalFlip(), *steps])
        ours, theirs = both(flipped, source, seed)
        assert type(ours) is type(theirs)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_steps_that_need_a_picture_get_one():
    steps = [v1.Resize((187, 250)), v1.RandomHorizontalFlip(), v1.TrivialAugmentWide(), v1.PILToTensor()]
    for seed in range(4):
        assert torch.equal(*both(v1.Compose(steps), encoded(picture()), seed))
    ours, theirs = both(v1.Resize((50, 70)), encoded(picture()), 0)
    assert type(ours) is type(theirs)
    assert ours.size == theirs.size


def test_nested_and_sequential_steps_are_looked_into():
    nested = v1.Compose([v1.Compose([v1.RandomResizedCrop(64)]), torch.nn.Sequential(v1.RandomHorizontalFlip())])
    ours, theirs = both(v1.Compose([nested, v1.PILToTensor()]), encoded(picture()), 3)
    assert farthest(ours, theirs) <= 1


@pytest.mark.parametrize("draws", range(5))
@settings(max_examples=50)
@given(width=st.integers(1, 4000), height=st.integers(1, 4000))
def test_rectangles_are_torchvision_s(draws, width, height):
    geometry, _ = take_geometry([TRAIN.transforms[0]])
    torch.manual_seed(draws)
    plan = geometry.plan(height, width)
    torch.manual_seed(draws)
    blank = torch.empty(3, height, width, device="meta")
    wanted = v1.RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3])
    at = plan.region
    assert (at.top, at.left, at.height, at.width) == tuple(wanted)


@given(
    width=st.integers(1, 4000),
    height=st.integers(1, 4000),
    size=st.lists(st.integers(1, 600), min_size=1, max_size=2),
    more=st.none() | st.integers(1, 300),
)
def test_sizes_are_torchvision_s(width, height, size, more):
    most = size[0] + more if len(size) == 1 and more is not None else None
    wanted = functional._compute_resized_output_size((height, width), size, most)
    assert resized(height, width, size, most) == tuple(wanted)


@given(width=st.integers(1, 3000), height=st.integers(1, 3000), size=st.integers(1, 500), part=st.floats(0.01, 1))
def test_what_a_central_crop_needs_is_within_the_picture(width, height, size, part):
    geometry, _ = take_geometry([v1.Resize(size), v1.CenterCrop(max(1, int(size * part)))])
    plan = geometry.plan(height, width)
    assert isinstance(plan, Plan)
    assert plan.cut is not None
    assert 0 < plan.region.height <= height
    assert 0 < plan.region.width <= width
    assert plan.cut.top + plan.cut.height <= plan.size[0]
    assert plan.cut.left + plan.cut.width <= plan.size[1]


def test_a_central_crop_leaves_out_what_lies_below_and_right_of_it():
    geometry, _ = take_geometry([v1.Resize(256), v1.CenterCrop(224)])
    plan = geometry.plan(1500, 2000)
    assert plan.region.height < 1500 * 0.95
    assert plan.region.width < 2000 * 0.84


def test_exact_is_torchvision_to_the_last_bit_and_takes_any_transform():
    source = encoded(picture())
    for transform in (TRAIN, v1.Compose([v1.RandomCrop(50), v1.ColorJitter(0.4), v1.ToTensor()])):
        torch.manual_seed(3)
        ours = Decode(transform, exact=True)(source)
        torch.manual_seed(3)
        assert torch.equal(ours, by_torchvision(transform, source))


def test_it_travels_to_other_processes():
    decode = pickle.loads(pickle.dumps(Decode(TRAIN)))
    torch.manual_seed(1)
    found = decode(encoded(picture()))
    torch.manual_seed(1)
    assert torch.equal(found, Decode(TRAIN)(encoded(picture())))
