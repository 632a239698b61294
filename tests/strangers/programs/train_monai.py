"""Segments small volumes with MONAI: its datasets, transforms and loaders, its engines, and loops by hand."""

import json
import pathlib

import monai.transforms as mt
import numpy as np
import torch
from monai.data import (
    CacheDataset,
    DataLoader,
    Dataset,
    GridPatchDataset,
    PatchIterd,
    PersistentDataset,
    SmartCacheDataset,
    ThreadDataLoader,
    decollate_batch,
    pad_list_data_collate,
)
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import CheckpointLoader, CheckpointSaver, MeanDice, ValidationHandler, from_engine
from monai.inferers import SimpleInferer, sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.utils import set_determinism

KEYS = ("image", "label")


def write_volumes():
    """Ten volumes with a bright box each, which is what is to be found."""
    rng = np.random.default_rng(7)
    folder = pathlib.Path("data")
    folder.mkdir()
    found = []
    for number in range(10):
        label = np.zeros((12, 12 + number % 2, 12), np.uint8)
        label[2 + number % 3 : 8, 3:9, 2:7] = 1
        files = {key: str(folder / f"{key}-{number}.npy") for key in KEYS}
        np.save(files["image"], (rng.normal(size=label.shape) + 2 * label).astype(np.float32))
        np.save(files["label"], label)
        found.append(files)
    return found


def reading():
    return [
        mt.LoadImaged(KEYS),
        mt.EnsureChannelFirstd(KEYS, channel_dim="no_channel"),
        mt.ScaleIntensityd("image"),
        mt.SpatialPadd(KEYS, (12, 14, 12)),
    ]


def drawing():
    return [
        mt.RandCropByPosNegLabeld(KEYS, "label", (8, 8, 8), num_samples=2),
        mt.RandFlipd(KEYS, 0.5, spatial_axis=0),
        mt.RandGaussianNoised("image", prob=0.5, std=0.1),
        mt.RandScaleIntensityd("image", 0.3, prob=0.7),
    ]


def values(batch):
    return [[list(batch[key].shape), type(batch[key]).__name__, float(batch[key].double().sum())] for key in KEYS]


def made():
    torch.manual_seed(3)
    model = UNet(3, 1, 1, channels=(4, 8), strides=(2,), norm="batch")
    return model, torch.optim.Adam(model.parameters(), 0.01)


def trained(files):
    """A loop by hand: patches at fixed places, a validation by a sliding window after each of two epochs."""
    cropping = [mt.CenterSpatialCropd(KEYS, (8, 8, 8)), mt.RandRotate90d(KEYS, prob=0.0)]
    training = DataLoader(CacheDataset(files[:7], mt.Compose(reading() + cropping), progress=False), batch_size=3)
    validation = DataLoader(Dataset(files[7:], mt.Compose(reading())), batch_size=1, num_workers=2)
    model, optimizer = made()
    metric, after = DiceMetric(), mt.Compose([mt.Activations(sigmoid=True), mt.AsDiscrete(threshold=0.5)])
    found = []
    for _ in range(2):
        model.train()
        for batch in training:
            loss = DiceLoss(sigmoid=True)(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        model.eval()
        with torch.no_grad():
            for batch in validation:
                out = sliding_window_inference(batch["image"], (8, 8, 8), 4, model)
                metric([after(each) for each in decollate_batch(out)], decollate_batch(batch["label"]))
        found.append(metric.aggregate().item())
        metric.reset()
    names = [item["image"].meta["filename_or_obj"] for batch in validation for item in decollate_batch(batch)]
    return found + names


def by_engines(files):
    """Its trainer, with a validation in each epoch; saved, and resumed by another one."""
    training = DataLoader(Dataset(files[:6], mt.Compose(reading())), batch_size=2, num_workers=2)
    validation = DataLoader(Dataset(files[6:], mt.Compose(reading())), batch_size=2)
    found = []
    for epochs, handlers in ((2, []), (3, ["resumed"])):
        model, optimizer = made()
        evaluator = SupervisedEvaluator(
            torch.device("cpu"),
            validation,
            model,
            inferer=SimpleInferer(),
            postprocessing=mt.Compose([mt.Activationsd("pred", sigmoid=True), mt.AsDiscreted("pred", threshold=0.5)]),
            key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
        )
        trainer = SupervisedTrainer(
            torch.device("cpu"),
            epochs,
            training,
            model,
            optimizer,
            DiceLoss(sigmoid=True),
            train_handlers=[ValidationHandler(1, evaluator)],
        )
        saved = {"model": model, "optimizer": optimizer, "trainer": trainer}
        if handlers:
            (file,) = pathlib.Path("kept").glob("*.pt")
            CheckpointLoader(str(file), saved, strict_shape=False).attach(trainer)
        CheckpointSaver("kept", saved, save_final=True, final_filename="last.pt").attach(trainer)
        trainer.run()
        found += [trainer.state.epoch, trainer.state.output[0]["loss"] if trainer.state.output else None]
        found.append(float(evaluator.state.metrics["dice"]))
    return found


def of_datasets(files):
    """What batches of its kinds of datasets hold, two epochs each; the smart cache's are others in the second."""
    whole = mt.Compose(reading())
    patches = PatchIterd(KEYS, patch_size=(6, 6, 6))
    smart = SmartCacheDataset(files, whole, replace_rate=0.5, cache_num=4, shuffle=False, progress=False)
    kinds = {
        "kept on disk": DataLoader(
            PersistentDataset(files, mt.Compose(reading()), "kept-rows"), batch_size=4, num_workers=1
        ),
        "padded": DataLoader(Dataset(files, mt.Compose(reading()[:3])), batch_size=4, collate_fn=pad_list_data_collate),
        "by a thread": ThreadDataLoader(CacheDataset(files, whole, progress=False), batch_size=4, num_workers=0),
        "repeated": ThreadDataLoader(Dataset(files[:4], whole), batch_size=2, repeats=2, num_workers=1),
    }
    found = {name: [[values(batch) for batch in loader] for _ in range(2)] for name, loader in kinds.items()}
    loader = DataLoader(GridPatchDataset(Dataset(files[:4], whole), patches), batch_size=4, num_workers=2)
    found["in patches"] = [[values(batch[0]) for batch in loader] for _ in range(2)]
    loader = DataLoader(smart, batch_size=4)
    smart.start()
    found["smart"] = []
    for _ in range(3):
        found["smart"].append([values(batch) for batch in loader])
        smart.update_cache()
    smart.shutdown()
    return found


def random(files):
    """Random crops, flips and noise, with `set_determinism()`: their form."""
    set_determinism(seed=5)
    loader = DataLoader(Dataset(files, mt.Compose(reading() + drawing())), batch_size=4, shuffle=True, num_workers=2)
    return [[[batch[key].shape for key in KEYS] for batch in loader] for _ in range(2)]


def drawn(files):
    """What is drawn with each number of workers, in two epochs."""
    found = []
    for workers in (0, 1, 2):
        set_determinism(seed=5)
        data = Dataset(files, mt.Compose(reading() + drawing()))
        loader = DataLoader(data, batch_size=4, num_workers=workers)
        found.append([[values(batch) for batch in loader] for _ in range(2)])
    set_determinism(seed=None)
    return found


if __name__ == "__main__":
    volumes = write_volumes()
    parts = (trained, by_engines, of_datasets, random, drawn)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part(volumes) for part in parts}))
