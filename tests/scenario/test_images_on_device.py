"""Batches of encoded pictures, which device_transform decodes. The decoder for CPUs takes the place of nvJPEG; the fake
device copies batches as a real one."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("nvidia.nvimgcodec")

from prefetchd_client import PrefetchLoader
from prefetchd_client.images import DecodeOnDevice, EncodedPictures, collate_encoded, encoded_picture
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from tests.scenario.device_streams import loader_of
from tests.unit.client.images.pictures import by_torchvision, encoded, farthest, picture

RESIZE = v1.Compose([v1.Resize((32, 32)), v1.PILToTensor()])

FILES = [
    encoded(picture(seed=0)),
    encoded(picture(120, 90, seed=1), progressive=True),
    encoded(picture(seed=2), "PNG"),
    encoded(picture(seed=3).convert("CMYK")),
    encoded(picture(seed=4).convert("L")),
    encoded(picture(60, 200, seed=5)),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cat").mkdir()
    for number, content in enumerate(FILES):
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(content)
    return ImageFolder(str(tmp_path), encoded_picture, loader=str)


def assert_decoded(pictures: torch.Tensor) -> None:
    for pixels, content in zip(pictures, FILES, strict=True):
        assert farthest(pixels, by_torchvision(RESIZE, content)) <= 1


def test_files_lie_in_the_ring_as_they_are(shared_daemon, folder):
    with PrefetchLoader(folder, 3, collate_fn=collate_encoded, num_workers=2, fresh=True) as loader:
        for step, (pictures, labels) in enumerate(loader):
            assert isinstance(pictures, EncodedPictures)
            assert labels.tolist() == [0, 0, 0]
            for each, content in zip(pictures, FILES[3 * step :]):
                assert each.dim() == 3 or bytes(each.numpy()) == content


def test_they_are_decoded_by_the_transform(shared_daemon, bench, folder):
    decode = DecodeOnDevice(RESIZE, device="cpu" if bench.is_fake else bench.name)
    options = {"collate_fn": collate_encoded, "batch_size": 3, "num_workers": 1, "shuffle": False}
    with loader_of(folder, device=bench.name, device_transform=decode, **options) as loader:
        assert_decoded(torch.cat([pictures.cpu() for pictures, _ in loader]))


def test_every_run_draws_the_same_crops(shared_daemon, folder):
    crop = DecodeOnDevice(v1.Compose([v1.RandomResizedCrop(32), v1.PILToTensor()]), device="cpu")
    runs = []
    for workers in (1, 2):
        options = {"collate_fn": collate_encoded, "num_workers": workers, "fresh": True, "seed": 3}
        with PrefetchLoader(folder, 3, device="cpu", device_transform=crop, **options) as loader:
            runs.append(torch.cat([pictures for _ in range(2) for pictures, _ in loader]))
    assert torch.equal(*runs)
    assert not torch.equal(runs[0][: len(FILES)], runs[0][len(FILES) :]), "another epoch has other crops"


def test_a_file_that_the_decoder_refuses_is_decoded_by_pillow(monkeypatch):
    asked = []

    def refusing(regions, device):
        asked.extend(regions)
        return [None] * len(regions)

    decode = DecodeOnDevice(RESIZE, device="cpu")
    monkeypatch.setattr("prefetchd_client.images.on_device.decode_regions", refusing)
    (pictures,) = decode(collate_encoded([(encoded_picture(content),) for content in FILES]))
    assert_decoded(pictures)
    assert len(asked) == len(FILES) - 2, "the PNG and the picture in CMYK were decoded before"


def test_steps_that_need_a_picture_are_refused():
    with pytest.raises(ValueError, match="allowed on a device: ToTensor, PILToTensor or ToImage"):
        DecodeOnDevice(v1.Compose([v1.RandomResizedCrop(32), v1.TrivialAugmentWide(), v1.ToTensor()]), device="cpu")
    crop = DecodeOnDevice(v1.Compose([v1.Resize(32), v1.CenterCrop(64), v1.PILToTensor()]), device="cpu")
    with pytest.raises(ValueError, match="allowed on a device: a CenterCrop no larger than Resize"):
        crop(collate_encoded([(encoded_picture(FILES[0]),)]))


def test_a_broken_file_is_left_to_on_error(shared_daemon, folder, tmp_path):
    (tmp_path / "cat" / "2.jpg").write_bytes(FILES[0][:2000])
    options = {"collate_fn": collate_encoded, "num_workers": 1, "fresh": True}
    with PrefetchLoader(folder, 3, on_error="skip", **options) as loader:
        assert [len(pictures) for pictures, _ in loader] == [2, 3]


@pytest.mark.parametrize("batch", [torch.zeros(3), [torch.zeros(3)], ()])
def test_a_batch_without_files_is_refused(batch):
    with pytest.raises(TypeError, match="allowed: EncodedPictures, which collate_fn=collate_encoded makes"):
        DecodeOnDevice(RESIZE, device="cpu")(batch)
