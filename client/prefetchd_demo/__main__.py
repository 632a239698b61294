"""This module is `python -m prefetchd_demo`, the demo itself. People call `prefetchd demo`, which has checked
the arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import shutil
import sys
from pathlib import Path

from rich.console import Console

from prefetchd.wire.errors import PrefetchdError, RemoteError
from prefetchd_demo.bar_report import STYLES, bar_groups, notes
from prefetchd_demo.bars import bar_chart
from prefetchd_demo.comparison import Measured, measure, start_once
from prefetchd_demo.conditions import Conditions
from prefetchd_demo.interruption import Interrupted, raise_interrupts
from prefetchd_demo.live import Live
from prefetchd_demo.machine import describe_gpu, describe_machine
from prefetchd_demo.own_daemon import own_daemon, own_directory, own_environment
from prefetchd_demo.stand_in import a100_step_s, explain_stand_in
from prefetchd_demo.table_report import side_by_side, table_figures
from prefetchd_demo.trainer_messages import CACHED, DATALOADER, ON_CPU, ON_GPU, PREFETCHD, STAND_IN, Plan


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
    parser.add_argument("--step-ms", type=float)
    parser.add_argument("--train-on-cpu", action="store_true")
    return parser.parse_args()


def _demo(options: argparse.Namespace, console: Console) -> None:
    machine = describe_machine()
    with Live(console) as live:
        step, step_s, text = _choose_step(options)
        live.heading(text)
        data = Path(options.data) if options.data else _pictures(options, live)
        live.heading(f"training on {data}, {options.workers} workers, batches of {options.batch_size}")
        with own_directory() as directory:
            plan = Plan(
                loader=PREFETCHD,
                step=step,
                step_s=step_s,
                data=str(data),
                most_images=options.images,
                batch_size=options.batch_size,
                workers=options.workers,
                buffer=options.buffer,
                epochs=options.epochs,
                stops_midway=step != ON_CPU,
                resumes=False,
                checkpoint="",
                cache=str(directory / "cache"),
            )
            loaders = [PREFETCHD, DATALOADER] if step == ON_CPU else [PREFETCHD, DATALOADER, CACHED]
            # Each once before any is measured: else the first one would pay for what Python compiles.
            for loader in loaders:
                _start_once(dataclasses.replace(plan, loader=loader), directory, live)
            measured = {
                loader: _measure(dataclasses.replace(plan, loader=loader), directory, live) for loader in loaders
            }
    ours = measured[PREFETCHD]
    conditions = Conditions(
        ours.first.opened.images, options.epochs, options.batch_size, options.workers, ours.second.ring, machine
    )
    console.print()
    _report(measured, conditions, console, as_table=step == ON_CPU)


def _report(measured: dict[str, Measured], conditions: Conditions, console: Console, *, as_table: bool) -> None:
    if as_table:
        figures = {loader: table_figures(each) for loader, each in measured.items()}
        console.print(side_by_side(figures, conditions, console.width), highlight=False, markup=False, soft_wrap=True)
        return
    chart = bar_chart(bar_groups(measured), STYLES, console.width, console.options.ascii_only)
    console.print(chart, soft_wrap=True)
    console.print()
    for line in notes(measured, conditions):
        console.print(line, highlight=False, markup=False)


def _choose_step(options: argparse.Namespace) -> tuple[str, float, str]:
    """Returns what trains, how long a stand-in's step lasts, and what to say of it."""
    if options.train_on_cpu:
        return ON_CPU, 0.0, "A small network trains on the CPUs, which also decode."
    if options.step_ms is None and (gpu := describe_gpu()):
        return ON_GPU, 0.0, f"A ResNet-50 trains on the GPU: {gpu}."
    step_s = a100_step_s(options.batch_size) if options.step_ms is None else options.step_ms / 1000
    return STAND_IN, step_s, explain_stand_in(options.batch_size, step_s)


def _pictures(options: argparse.Namespace, live: Live) -> Path:
    # The photographs' packages are not needed with --data.
    from prefetchd_demo.pictures import cached_pictures

    def written(directory: Path, so_far: int) -> None:
        live.show("writing pictures", so_far, options.images, f"{so_far:,} of {options.images:,} in {directory.parent}")

    return cached_pictures(options.images, options.workers, written)


def _start_once(plan: Plan, directory: Path, live: Live) -> None:
    environment = own_environment(directory)
    plan = dataclasses.replace(plan, checkpoint=str(directory / "once.pt"), cache=str(directory / "once"))
    with own_daemon(environment, plan.workers) if plan.loader != DATALOADER else contextlib.nullcontext():
        start_once(plan, environment, live)
    shutil.rmtree(plan.cache, ignore_errors=True)


def _measure(plan: Plan, directory: Path, live: Live) -> Measured:
    """Measures one loader. Its daemon is gone afterwards: nothing of it stands in another loader's way."""
    environment = own_environment(directory)
    plan = dataclasses.replace(plan, checkpoint=str(directory / f"{plan.loader}.pt"))
    if plan.loader == DATALOADER:
        return measure(plan, environment, None, live)
    with own_daemon(environment, plan.workers) as daemon:
        try:
            return measure(plan, environment, daemon, live)
        except RemoteError:
            if log := daemon.log_tail():
                live.heading(f"the daemon's log ends with:\n{log}")
            raise


if __name__ == "__main__":
    sys.exit(main())
