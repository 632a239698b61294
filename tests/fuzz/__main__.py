"""Fuzz for a given time: `python -m tests.fuzz --seconds 600`.

Prints each program whose outcome is not DataLoader's, in its shortest form.
"""

from __future__ import annotations

import random
import time

import click

from tests.fuzz.programs import Epoch, Program, program
from tests.fuzz.running import check
from tests.fuzz.shrinking import shrunk


@click.command()
@click.option("--seconds", type=float, default=600.0, show_default=True, help="End after so long.")
@click.option("--programs", type=int, default=0, help="End after so many programs; 0: when the time is over.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed makes other programs.")
@click.option("--only", "source", default="", help='Run this program alone, such as "Program(workers=2)".')
@click.option("--part", default="", help="Make programs of this dataset alone.")
@click.option("--most", type=int, default=20, show_default=True, help="End after so many findings.")
def main(seconds: float, programs: int, seed: int, source: str, part: str, most: int) -> None:
    """Run random programs with DataLoader and with PrefetchLoader, and compare."""
    if source:
        check(eval(source, {"Program": Program, "Epoch": Epoch}))
        click.echo("equal")
        return
    until_s, number, findings = time.monotonic() + seconds, 0, 0
    chosen = random.Random(seed)
    while time.monotonic() < until_s and findings < most and (not programs or number < programs):
        number += 1
        what = program(lambda name, options: part if part and name == "part" else chosen.choice(options))
        try:
            check(what)
        except AssertionError:
            findings += 1
            click.echo(f"finding {findings}, program {number}:\n{shrunk(what)}\n")
        if number % 50 == 0:
            click.echo(f"{number} programs, {findings} findings")
    click.echo(f"{number} programs, {findings} findings")
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main()
