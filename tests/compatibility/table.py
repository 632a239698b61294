"""docs/compatibility.md from a run of all cases: `python -m tests.compatibility.table`.

A daemon of its own is started for it. A case whose outcome is not what its entry says ends the run.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from prefetchd_client.loader import beginnings

from tests.compatibility.case import GROUPS, Case
from tests.compatibility.registry import ALL_CASES, library_errors
from tests.compatibility.running import run_case
from tests.conftest import running_daemon

FILE = Path(__file__).parents[2] / "docs" / "compatibility.md"

PROGRAMS = Path(__file__).parent / "programs.md"
"""The last section. These are run by hand."""

HEAD = """\
# Compatibility with DataLoader

Each case below was run twice, once with torch's DataLoader and once with PrefetchLoader, with the same arguments. What
came out was compared: types, values to the last bit, dtypes, shapes, strides, the order of keys and of batches, which
names stand for one object and which tensors for one memory, and of errors the type, text, arguments, attributes and
the functions that the traceback shows; in a few cases less, such as an error's type alone. Where the two differ, the
case says why and exactly what may differ: another difference fails. The reasons were written before the cases were run,
but for three whose difference was seen first.

For errors of datasets DataLoader was run without workers. With workers it makes a new exception with another text
("Caught ... in DataLoader worker process 0"); here it is the user's own, always. Cases whose datasets raise one
exception or another are counted each: {exceptions} of all.

`python -m tests.compatibility.table` draws this file anew from a run; the cases are in `tests/compatibility/`, and
`pytest tests/compatibility` runs them too. "Workers" is DataLoader's `num_workers` in that case: with 0 its batches are
as `collate_fn` made them, with 2 as they come out of its workers' queue. [arguments.md](arguments.md) says what each
argument does.
"""


def write(cases: Iterable[Case]) -> None:
    """Runs what can be run here, then writes. Ends the process when an outcome is not the expected one."""
    wrong = []
    with tempfile.TemporaryDirectory() as directory, running_daemon(Path(directory)) as daemon:
        daemon.start("--linger-clean", "0", "--nice", "0")
        for case in cases:
            if case.missing:
                sys.exit(f"{case.title} needs {case.missing}: install it, the table is to be complete")
            beginnings.forget()
            verdict = run_case(case)
            print(f"{case.group}: {case.title}: {'different' if verdict.differences else 'equal'}", flush=True)
            if verdict.unexpected:
                wrong.append("\n  ".join([case.title, *verdict.unexpected]))
    if wrong:
        sys.exit("not as expected:\n" + "\n".join(wrong))
    FILE.write_text(text(), "utf-8")
    print(FILE)


def text() -> str:
    """The file, if every case's outcome is the expected one."""
    versions = f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    return "\n".join(
        [
            HEAD.format(exceptions=len(library_errors.RAISED)),
            f"Last run with {versions}.",
            "",
            *summary(),
            *(line for name in GROUPS for line in group(name)),
            PROGRAMS.read_text("utf-8"),
        ]
    )


def summary() -> list[str]:
    """How many cases there are of each kind."""
    lines = ["| group | cases | equal | different |", "|---|---|---|---|"]
    for name, cases in [*((name, of_group(name)) for name in GROUPS), ("all", ALL_CASES)]:
        equal = sum(not case.reason for case in cases)
        lines.append(f"| {name} | {len(cases)} | {equal} | {len(cases) - equal} |")
    return [*lines, ""]


def group(name: str) -> list[str]:
    """The cases of one group."""
    lines = [f"## {name.capitalize()}", "", "| case | workers | outcome |", "|---|---|---|"]
    return [*lines, *(row(case) for case in of_group(name)), ""]


def row(case: Case) -> str:
    needs = f" ({', '.join(case.needs)})" if case.needs else ""
    return f"| {case.title}{needs} | {case.workers} | {f'different: {case.reason}' if case.reason else 'equal'} |"


def of_group(name: str) -> list[Case]:
    return [case for case in ALL_CASES if case.group == name]


if __name__ == "__main__":
    write(ALL_CASES)
