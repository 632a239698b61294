"""Implements `prefetchd advise`: what more workers, a buffer, a sample cache or a second machine would bring."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from prefetchd.cli.completion import stream_names
from prefetchd.cli.options import socket_option
from prefetchd.diagnosis.advice import Advice, Answer, advise
from prefetchd.status.snapshot import read_report
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import runtime_paths


@click.command("advise")
@socket_option
@click.argument("streams", metavar="[STREAM]...", nargs=-1, shell_complete=stream_names)
@click.option("--workers", type=click.IntRange(1, 1 << 16), help="Answer about this number too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: a list of answers for each stream.")
def command(socket: str | None, streams: tuple[str, ...], workers: int | None, as_json: bool) -> None:
    """Say what other numbers would bring streams, all of them by default: workers, a buffer, a sample cache, a machine.

    The answers are arithmetic on the last minute (docs/tuning.md), each with the range in which it lies. Nothing is
    changed.

    Exit code: 0 answered, 1 no such stream or no daemon.
    """
    report = read_report(runtime_paths(socket))
    snapshot = report.snapshot
    if snapshot is None:
        raise click.ClickException(f"no daemon to ask: it is {report.state}")
    found = {each["name"]: each for each in snapshot["streams"]}
    for name in streams:
        if name not in found:
            raise click.ClickException(f"no stream {one_line(name)!r}; there are: {', '.join(map(one_line, found))}")
    advices = {name: advise(found[name], snapshot, workers) for name in streams or found}
    if as_json:
        click.echo(json.dumps({"advice_version": 1, "streams": [_object(*each) for each in advices.items()]}, indent=2))
        return
    if not advices:
        click.echo("no streams")
    for name, advice in advices.items():
        for line in lines(one_line(name), advice):
            click.echo(line)


def _object(name: str, advice: Advice) -> dict[str, Any]:
    return {"name": name, **dataclasses.asdict(advice)}


def lines(name: str, advice: Advice) -> list[str]:
    """Returns what people are told of the stream."""
    if advice.why_none:
        return [f"{name}: {advice.why_none}"]
    takes = "shows no pace of its own" if advice.demand is None else f"would take {advice.demand:.3g} batches/s"
    head = f"{name}: the trainer waits {advice.stalled:.0%} of its time, and {takes}"
    return [head, *(f"  {_named(each):24}{_range(each)}" for each in advice.answers)]


def _named(answer: Answer) -> str:
    if answer.what == "workers":
        text = f"{answer.value} worker{'s' if answer.value > 1 else ''}"
        return f"{text}, as now" if answer.is_now else text
    return {"machines": "a second machine", "sample cache": "a sample cache"}.get(answer.what, f"buffer={answer.value}")


def _range(answer: Answer) -> str:
    return f"{answer.batches_per_s:10.3g} batches/s   ({answer.low:.3g} to {answer.high:.3g})"
