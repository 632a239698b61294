"""Decode raises for a damaged JPEG when Pillow does, and only then: `on_error` sees the same files."""

from __future__ import annotations

import random
import re
from functools import partial

import pytest
import torch

pytest.importorskip("nvidia.nvimgcodec")

from PIL import Image, UnidentifiedImageError
from prefetchd_client.images import Decode
from prefetchd_client.images.jpeg_markers import is_whole
from prefetchd_client.images.region_codec import open_jpeg
from torchvision import transforms as v1

from tests.unit.client.images.pictures import TRAIN_BYTES, by_torchvision, encoded, farthest, picture

WHOLE = [
    encoded(picture()),
    encoded(picture(), progressive=True),
    encoded(picture(), restart_marker_rows=1),
    encoded(picture(), subsampling=0),
    encoded(picture().convert("L")),
]
AS_IT_IS = v1.Compose([v1.Resize((187, 250)), v1.PILToTensor()])


@pytest.fixture(autouse=True)
def _generators_of_other_tests():
    with torch.random.fork_rng(devices=[]):
        yield


def damaged(dice: random.Random) -> bytes:
    data = bytearray(dice.choice(WHOLE))
    at, length = dice.randrange(2, len(data)), dice.randint(1, 300)
    kind = dice.choice(["bytes", "header", "zeros", "noise", "cut out", "put in"])
    if kind in ("bytes", "header"):
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(700 if kind == "header" else len(data))] = dice.randrange(256)
    elif kind == "cut out":
        del data[at : at + length]
    elif kind == "put in":
        data[at:at] = dice.randbytes(length // 6)
    else:
        part = len(data[at : at + length])
        data[at : at + length] = bytes(part) if kind == "zeros" else dice.randbytes(part)
    return bytes(data)


def outcome(decode, source: bytes) -> tuple[str, object]:
    torch.manual_seed(5)
    try:
        return "", decode(source)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).split('<')[0]}", None


@pytest.mark.parametrize("files", [120, pytest.param(800, marks=pytest.mark.slow)])
def test_damaged_files_raise_what_pillow_raises(files, capfd):
    """4 of 500 were pictures that Pillow refuses: a marker stood behind the rows of the region."""
    dice = random.Random(0)
    unlike, apart = [], 0.0
    for _ in range(files):
        source = damaged(dice)
        theirs, whole = outcome(partial(by_torchvision, AS_IT_IS), source)
        for transform in (TRAIN_BYTES, AS_IT_IS):
            ours, found = outcome(Decode(transform), source)
            if ours != theirs:
                unlike.append((theirs, ours))
        if whole is not None and found is not None:
            apart = max(apart, farthest(found, whole))
    capfd.readouterr()
    assert unlike == []
    assert apart <= 1


def test_a_marker_behind_the_region_is_left_to_pillow():
    source = bytearray(encoded(picture()))
    source[-200:-198] = b"\xff\xc8"
    assert not is_whole(memoryview(source))
    with pytest.raises(OSError, match="broken data stream"):
        by_torchvision(TRAIN_BYTES, bytes(source))
    for seed in range(5):
        torch.manual_seed(seed)
        with pytest.raises(OSError, match="broken data stream"):
            Decode(TRAIN_BYTES)(bytes(source))


@pytest.mark.parametrize("source", WHOLE)
def test_whole_files_are_decoded_by_region(source):
    assert is_whole(memoryview(source))
    assert open_jpeg(source, 1e9) is not None


@pytest.mark.parametrize("length", range(24))
def test_a_header_without_a_scan_is_none(length):
    assert not is_whole(memoryview(WHOLE[0][:length]))


@pytest.mark.parametrize("sides", [(0, 250), (187, 0), (0, 0)])
def test_a_picture_without_pixels_is_pillow_s_error_with_its_path(tmp_path, sides):
    source = bytearray(encoded(picture()))
    begin = re.search(rb"\xff\xc0..\x08", bytes(source)).end()
    source[begin : begin + 4] = b"".join(side.to_bytes(2, "big") for side in sides)
    path = tmp_path / "flat.jpg"
    path.write_bytes(source)
    with pytest.raises((UnidentifiedImageError, OSError)) as theirs, Image.open(path) as image:
        image.convert("RGB")
    with pytest.raises(type(theirs.value), match=r"flat\.jpg"):
        Decode(TRAIN_BYTES)(path)
