"""How far are the pixels of prefetchd_client.images from torchvision's? On the demo's 2,000 pictures, in steps of 255.

python -m benchmarks.image_distances [--pictures N]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from prefetchd_client.images import Decode
from prefetchd_demo.machine import describe_machine
from prefetchd_demo.pictures import cached_pictures
from torchvision import transforms
from torchvision.datasets.folder import pil_loader

PICTURES = 2000
BICUBIC = transforms.InterpolationMode.BICUBIC
GEOMETRIES: dict[str, list[Any]] = {
    "`RandomResizedCrop(224)`": [transforms.RandomResizedCrop(224)],
    "`RandomResizedCrop(224)`, bicubic": [transforms.RandomResizedCrop(224, interpolation=BICUBIC)],
    "`Resize(256)`, `CenterCrop(224)`": [transforms.Resize(256), transforms.CenterCrop(224)],
    "`Resize(256)`, `CenterCrop(224)`, bicubic": [
        transforms.Resize(256, interpolation=BICUBIC),
        transforms.CenterCrop(224),
    ],
    "`Resize((224, 224))`": [transforms.Resize((224, 224))],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pictures", type=int, default=PICTURES)
    wanted = parser.parse_args().pictures
    directory = cached_pictures(PICTURES, 2, lambda directory, so_far: None)
    files = sorted(directory.glob("*/*.jpg"))[:: max(1, PICTURES // wanted)]
    print(describe_machine())
    print("| steps | mean | worst picture's mean | worst pixel | pixels that differ |\n|---|---|---|---|---|")
    for name, steps in GEOMETRIES.items():
        transform = transforms.Compose([*steps, transforms.PILToTensor()])
        decode = Decode(transform)
        means, worst, differing = [], 0, 0.0
        for seed, file in enumerate(files):
            torch.manual_seed(seed)
            ours = decode(file)
            torch.manual_seed(seed)
            distances = (ours.int() - transform(pil_loader(file)).int()).abs()
            means.append(distances.double().mean().item())
            worst = max(worst, int(distances.max()))
            differing += (distances > 0).double().mean().item() / len(files)
        mean = sum(means) / len(means)
        print(f"| {name} | {mean:.4f} | {max(means):.3f} | {worst} | {differing:.2%} |", flush=True)


if __name__ == "__main__":
    main()
