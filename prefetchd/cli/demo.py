"""Implements `prefetchd demo`: trains through the daemon and through DataLoader, side by side."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import click

from prefetchd.supervisor.cpu_limits import usable_cpus

IMAGES = 2000
# What imports it, and of what package it is.
TRAINING_NEEDS = {"torchvision": "torchvision", "PIL": "pillow"}
CACHE_NEEDS = {"tensordict": "tensordict"}
PICTURES_NEED = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


@click.command("demo")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Train on these images: one directory a class. Default: crops of ten photographs, written once.",
)
@click.option(
    "--images",
    type=click.IntRange(10),
    help=f"How many images to write, or to use of --data.  [default: {IMAGES}, all of --data]",
)
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--workers", type=click.IntRange(1), help="Of each of the two loaders. Default: the CPUs.")
@click.option("--buffer", metavar="SIZE", help="The ring's bound: batches, or bytes as in 2GiB. Default: the loader's.")
@click.option(
    "--step-ms",
    type=click.FloatRange(0),
    help="Train nothing: let each step last so long, asleep.  [default without a GPU: ResNet-50's on an A100]",
)
@click.option("--train-on-cpu", is_flag=True, help="Train a small network on the CPUs, which also decode.")
def command(
    data: Path | None,
    images: int | None,
    epochs: int,
    batch_size: int,
    workers: int | None,
    buffer: str | None,
    step_ms: float | None,
    train_on_cpu: bool,
) -> None:
    """Train through the daemon, through DataLoader, and with a sample cache, side by side.

    On a GPU a ResNet-50; without one, a stand-in that lasts as long and leaves the CPUs alone. Validates after each
    epoch. Kills each trainer once and starts it again. Uses a daemon of its own, and leaves nothing but the pictures,
    in $XDG_CACHE_HOME/prefetchd/demo.

    Exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    if train_on_cpu and step_ms is not None:
        raise click.UsageError("--step-ms is the length of a stand-in's step; --train-on-cpu has none")
    _check_packages(TRAINING_NEEDS | ({} if data else PICTURES_NEED) | ({} if train_on_cpu else CACHE_NEEDS))
    if data is not None:
        _check_classes(data)
    options = {
        "--data": data.absolute() if data else None,
        "--images": images or (0 if data else IMAGES),
        "--epochs": epochs,
        "--batch-size": batch_size,
        "--workers": workers or usable_cpus(),
        "--buffer": buffer,
        "--step-ms": step_ms,
    }
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    arguments += ["--train-on-cpu"] if train_on_cpu else []
    # This process becomes the demo: its signals and its exit code are the demo's own. Verbs do not import the client.
    # Until it has handlers for them, signals wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefetchd_demo", *arguments])


def _check_packages(needed: dict[str, str]) -> None:
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise click.ClickException(
            f"the demo needs {', '.join(missing)}; install with: pip install {' '.join(missing)}"
        )


def _check_classes(data: Path) -> None:
    try:
        classes = [entry for entry in data.iterdir() if entry.is_dir()]
    except OSError as error:
        raise click.ClickException(f"--data {data}: {error.strerror}") from None
    if not classes:
        raise click.BadParameter(
            f"{data} has no directories in it; allowed: one directory of images for each class", param_hint="'--data'"
        )
