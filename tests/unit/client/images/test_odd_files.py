"""Files that are no plain JPEGs come out as from torchvision, and raise what Pillow raises."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("nvidia.nvimgcodec")

from PIL import Image
from prefetchd_client.images import Decode, region_codec
from prefetchd_client.images.region_codec import END_OF_IMAGE, Jpeg, Region, open_jpeg
from torchvision import transforms as v1

from tests.unit.client.images.pictures import (
    TRAIN,
    TRAIN_BYTES,
    VALIDATE_BYTES,
    by_torchvision,
    encoded,
    farthest,
    picture,
)

ROTATION = 0x0112


def rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[ROTATION] = 6
    return exif


def deep() -> Image.Image:
    return Image.fromarray((np.arange(250 * 187).reshape(187, 250) % 65536).astype(np.uint16))


def transparent() -> Image.Image:
    image = picture()
    image.putalpha(100)
    return image


DECODED_BY_REGION = {
    "progressive": encoded(picture(), progressive=True),
    "grey": encoded(picture().convert("L")),
    "4:4:4": encoded(picture(), subsampling=0),
    "4:2:2": encoded(picture(), subsampling=1),
    "RGB": encoded(picture(), keep_rgb=True),
    "EXIF rotation": encoded(picture(), exif=rotated()),
    "restart markers": encoded(picture(), restart_marker_rows=1),
    "bytes after its end": encoded(picture()) + bytes(20),
}
DECODED_BY_PILLOW = {
    "PNG": encoded(picture(), "PNG"),
    "PNG, transparent": encoded(transparent(), "PNG"),
    "PNG, palette": encoded(picture().quantize(), "PNG"),
    "PNG, 16 bits": encoded(deep(), "PNG"),
    "WebP": encoded(picture(), "WEBP"),
    "GIF": encoded(picture(), "GIF"),
    "TIFF": encoded(picture(), "TIFF"),
    "CMYK": encoded(picture().convert("CMYK")),
    "many bytes after its end": encoded(picture()) + bytes(2000),
}


def both(transform, source: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(11)
    ours = Decode(transform)(source)
    torch.manual_seed(11)
    return ours, by_torchvision(transform, source)


@pytest.fixture(autouse=True)
def _generators_of_other_tests():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("source", DECODED_BY_REGION.values(), ids=DECODED_BY_REGION)
def test_any_jpeg_of_eight_bits_is_decoded_by_region(source):
    assert open_jpeg(source, 1e9) is not None
    for transform in (TRAIN_BYTES, VALIDATE_BYTES):
        assert farthest(*both(transform, source)) <= 1


@pytest.mark.parametrize("source", DECODED_BY_PILLOW.values(), ids=DECODED_BY_PILLOW)
def test_all_else_is_torchvision_s(source):
    assert open_jpeg(source, 1e9) is None
    for transform in (TRAIN, VALIDATE_BYTES):
        assert torch.equal(*both(transform, source))


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_file_that_was_cut_short_raises_whatever_region_it_is_asked_for(part):
    whole = encoded(picture())
    source = whole[: int(len(whole) * part)]
    with pytest.raises(OSError) as theirs:
        by_torchvision(TRAIN, source)
    for seed in range(5):
        torch.manual_seed(seed)
        with pytest.raises(OSError) as ours:
            Decode(TRAIN)(source)
        assert type(ours.value) is type(theirs.value)
        assert str(ours.value).split("<")[0] == str(theirs.value).split("<")[0]


@pytest.mark.parametrize("source", [b"", b"no picture", END_OF_IMAGE * 20], ids=["empty", "text", "an end alone"])
def test_what_is_no_picture_raises_pillow_s_error(source):
    with pytest.raises(OSError, match="cannot identify image file"):
        Decode(TRAIN)(source)


def test_a_path_is_named_in_the_error(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    for path in (tmp_path / "broken.jpg", str(tmp_path / "broken.jpg")):
        with pytest.raises(OSError, match=r"broken\.jpg"):
            Decode(TRAIN)(path)
    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        Decode(TRAIN)(tmp_path / "missing.jpg")


def test_a_file_that_is_damaged_in_the_middle_is_decoded_as_pillow_does(capfd):
    whole = encoded(picture())
    source = whole[: len(whole) // 2] + whole[len(whole) // 2 + 300 :]
    assert farthest(*both(v1.Compose([v1.Resize((187, 250)), v1.PILToTensor()]), source)) <= 1
    capfd.readouterr()


@pytest.mark.parametrize("transform", [TRAIN_BYTES, VALIDATE_BYTES], ids=["train", "validate"])
def test_a_region_that_cannot_be_decoded_is_cut_out_of_pillow_s_picture(monkeypatch, transform):
    monkeypatch.setattr(Jpeg, "pixels", lambda self, region: None)
    assert torch.equal(*both(transform, encoded(picture())))


def test_a_crop_larger_than_the_picture_is_torchvision_s():
    assert torch.equal(*both(v1.Compose([v1.Resize(50), v1.CenterCrop(64), v1.PILToTensor()]), encoded(picture())))


def test_pictures_too_large_for_pillow_raise_its_error(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(Image.DecompressionBombError):
        Decode(TRAIN)(encoded(picture()))


def test_paths_and_bytes_of_every_kind_give_the_same(tmp_path):
    source = encoded(picture())
    path = tmp_path / "picture.jpg"
    path.write_bytes(source)
    array = np.frombuffer(source, np.uint8)
    kinds = [path, str(path), bytearray(source), memoryview(source), array, torch.from_numpy(array.copy())]
    wanted = both(TRAIN, source)[0]
    for kind in kinds:
        torch.manual_seed(11)
        assert torch.equal(Decode(TRAIN)(kind), wanted), type(kind)


def test_what_is_neither_is_refused_and_the_way_out_named():
    for source in (picture(), 3, np.zeros((3, 4), np.uint8), torch.zeros(3)):
        with pytest.raises(TypeError, match=r"allowed: a path, bytes.*loader=str"):
            Decode(TRAIN)(source)


@pytest.mark.parametrize("first", [v1.RandomCrop(20), v1.ToTensor(), v1.ColorJitter(0.4)], ids=lambda step: repr(step))
def test_a_transform_that_begins_otherwise_is_refused(first):
    with pytest.raises(ValueError, match=r"begins with .*; allowed: .*RandomResizedCrop.*exact=True"):
        Decode(v1.Compose([first, v1.RandomResizedCrop(20)]))
    with pytest.raises(ValueError, match="begins with None"):
        Decode(v1.Compose([]))


def test_an_interpolation_that_torch_lacks_is_refused():
    with pytest.raises(ValueError, match=r"'lanczos'; allowed: 'bilinear' and 'bicubic'.*exact=True"):
        Decode(v1.RandomResizedCrop(20, interpolation=v1.InterpolationMode.LANCZOS))


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    with pytest.raises(ImportError, match=r'extra "images" has it: pip install nvidia-nvimgcodec-cu13.*exact=True'):
        Decode(TRAIN)
    Decode(TRAIN, exact=True)


def test_to_make_a_transform_imports_nothing_of_the_gpu():
    program = """if True:
        import sys
        from prefetchd_client.images import Decode
        from torchvision.transforms import RandomResizedCrop
        Decode(RandomResizedCrop(20))
        print("nvidia.nvimgcodec" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_nothing_is_printed_by_the_import():
    program = """if True:
        import os
        from prefetchd_client.images.region_codec import VERBOSITY, import_library
        import_library()
        print(os.environ.get(VERBOSITY))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert done.stderr == ""


def test_threads_have_decoders_of_their_own():
    with ThreadPoolExecutor(2) as pool:
        ours = region_codec._codec(region_codec.CPU)
        assert all(codec is not ours for codec in pool.map(lambda _: region_codec._codec(region_codec.CPU), range(2)))
    assert region_codec._codec(region_codec.CPU) is ours


def test_a_device_decodes_a_batch_at_once_on_its_current_stream(monkeypatch):
    """The decoder for CPUs in the place of a GPU's."""
    streams = []

    class Recording:
        def __init__(self, decoder):
            self._decoder = decoder

        def decode(self, views, cuda_stream, **options):
            streams.append((len(views), cuda_stream))
            return self._decoder.decode(views, **options)

    def made(device):
        ours = region_codec._codec(region_codec.CPU)
        return dataclasses.replace(ours, decoder=Recording(ours.decoder))

    monkeypatch.setattr(region_codec, "_make_codec", made)
    monkeypatch.setattr(region_codec, "from_dlpack", lambda image: torch.from_numpy(np.asarray(image)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    jpegs = [open_jpeg(encoded(picture(seed=seed)), 1e9) for seed in range(3)]
    asked = [(jpeg, Region(10, 20, 30, 40)) for jpeg in jpegs]
    found = region_codec.decode_regions(asked, torch.device("cuda", 3))
    assert streams == [(3, 7)]
    for pixels, (jpeg, region) in zip(found, asked):
        assert torch.equal(pixels, jpeg.pixels(region))
