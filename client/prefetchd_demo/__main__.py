"""This module is `python -m prefetchd_demo`, the demo itself. People call `prefetchd demo`, which has checked
the arguments."""

from __future__ import annotations

import argparse
import dataclasses
import io
import sys
from pathlib import Path

from rich.console import Console

from prefetchd.wire.errors import PrefetchdError, RemoteError
from prefetchd_demo.comparison import Measured, measure
from prefetchd_demo.interruption import Interrupted, raise_interrupts
from prefetchd_demo.live import Live
from prefetchd_demo.machine import describe_machine
from prefetchd_demo.own_daemon import own_daemon, own_directory, own_environment
from prefetchd_demo.report import Conditions, side_by_side
from prefetchd_demo.trainer_messages import DATALOADER, PREFETCHD, Plan


def main() -> int:
    """Runs the demo. Returns the exit code: 0 done, 1 failed, 128 + n when signal n ended it. Nothing is left but the
    cached pictures."""
    options = _options()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        raise_interrupts()
        _demo(options, Console())
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except PrefetchdError as error:
        print(f"prefetchd: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prefetchd demo")
    parser.add_argument("--data", default="")
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--buffer", default="")
    return parser.parse_args()


def _demo(options: argparse.Namespace, console: Console) -> None:
    machine = describe_machine()
    with Live(console) as live:
        data = Path(options.data) if options.data else _pictures(options, live)
        live.heading(f"training on {data}, {options.workers} workers, batches of {options.batch_size}")
        with own_directory() as directory:
            ours, theirs = _measure_both(options, data, directory, live)
    conditions = Conditions(ours.images, options.epochs, options.batch_size, options.workers, ours.ring, machine)
    figures = {PREFETCHD: ours.figures, DATALOADER: theirs.figures}
    table = side_by_side(figures, conditions, console.width)
    console.print("\n" + table, highlight=False, markup=False, soft_wrap=True)


def _pictures(options: argparse.Namespace, live: Live) -> Path:
    # The photographs' packages are not needed with --data.
    from prefetchd_demo.pictures import cached_pictures

    def written(directory: Path, so_far: int) -> None:
        live.show("writing pictures", so_far, options.images, f"{so_far:,} of {options.images:,} in {directory.parent}")

    return cached_pictures(options.images, options.workers, written)


def _measure_both(options: argparse.Namespace, data: Path, directory: Path, live: Live) -> tuple[Measured, Measured]:
    plan = Plan(
        loader=PREFETCHD,
        data=str(data),
        most_images=options.images,
        batch_size=options.batch_size,
        workers=options.workers,
        buffer=options.buffer,
        first_epoch=0,
        epochs=options.epochs,
        checkpoint=str(directory / "checkpoint.pt"),
    )
    environment = own_environment(directory)
    with own_daemon(environment, options.workers) as daemon:
        try:
            ours = measure(plan, environment, daemon, live)
        except RemoteError:
            if log := daemon.log_tail():
                live.heading(f"the daemon's log ends with:\n{log}")
            raise
    # The daemon is gone: nothing of it stands in DataLoader's way.
    return ours, measure(dataclasses.replace(plan, loader=DATALOADER), environment, None, live)


if __name__ == "__main__":
    sys.exit(main())
