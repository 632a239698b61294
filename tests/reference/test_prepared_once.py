"""R2: images that are decoded once; the same validation as DataLoader's, and a training that learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("tensordict")
pytest.importorskip("torchvision")
from PIL import Image

from examples import prepared_once


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for label, colour in enumerate([(200, 30, 30), (30, 200, 30)]):
        (root / str(label)).mkdir()
        for number in range(40):
            pixels = np.random.default_rng(number).integers(0, 50, (60, 80, 3)) + np.array(colour)
            Image.fromarray(pixels.astype(np.uint8)).save(root / str(label) / f"{number:03d}.png")
    return root


def test_validation_is_dataloaders_in_each_epoch_and_the_training_learns(shared_daemon, images, tmp_path):
    theirs = prepared_once.made_loaders(images, tmp_path / "cache", "torch")["validation"]
    loaders = prepared_once.made_loaders(images, tmp_path / "cache")
    with loaders["train"], loaders["validation"]:
        for _ in range(2):
            for ours, their in zip(loaders["validation"], theirs, strict=True):
                assert all(torch.equal(one, other) for one, other in zip(ours, their, strict=True))
        assert prepared_once.train(loaders, 2, epochs=4) > 0.9
        assert all(each.shape[1:] == (3, 224, 224) for each, _ in loaders["train"])


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_on_a_device_validation_is_dataloaders_too_and_the_training_learns(shared_daemon, images, tmp_path, device):
    theirs = prepared_once.made_loaders(images, tmp_path / "cache", "torch")["validation"]
    loaders = prepared_once.made_loaders(images, tmp_path / "cache", device=device)
    with loaders["train"], loaders["validation"]:
        for ours, their in zip(loaders["validation"], theirs, strict=True):
            assert all(each.device.type == device for each in ours)
            torch.testing.assert_close(ours[0].cpu(), their[0], rtol=1e-5, atol=1e-5)
            assert torch.equal(ours[1].cpu(), their[1])
        assert prepared_once.train(loaders, 2, epochs=4, device=device) > 0.9
        sizes = [(pictures.shape[1:], pictures.dtype) for pictures, _ in loaders["train"]]
        assert {*sizes} == {((3, 224, 224), torch.float32)}


def test_a_run_from_the_command_line(shared_daemon, images, tmp_path, monkeypatch, capsys):
    arguments = ["prepared_once", str(images), str(tmp_path / "cache"), "--device", "cpu", "--epochs", "4"]
    monkeypatch.setattr("sys.argv", arguments)
    prepared_once.main()
    assert float(capsys.readouterr().out.removeprefix("validation ")) > 0.9
