"""Runs the tests, reports, and ends with 0 when enough of them pass."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.compatibility.torch_suite import left_out, outcomes
from tests.compatibility.torch_suite.outcomes import Outcome, Summary
from tests.compatibility.torch_suite.suite import Suite
from tests.conftest import running_daemon

LIMIT_S = 900.0
"""One of the tests starts 28 processes, one after the other."""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as directory, running_daemon(Path(directory)) as daemon:
        daemon.start("--linger", "0", "--linger-clean", "0", "--nice", "0")
        summary = Summary(tuple(_outcomes(options)))
    print("", *outcomes.lines(summary), sep="\n")
    sys.exit(not summary.reaches)


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    with contextlib.ExitStack() as stack:
        suite = stack.enter_context(Suite(options.file, swapped=not options.original, limit_s=options.limit_s))
        original: Suite | None = None
        for name in suite.names:
            if not any(fnmatch.fnmatchcase(name, each) for each in options.only):
                continue
            why = "" if options.all else left_out.reason(name)
            outcome = Outcome(name, outcomes.LEFT_OUT, why) if why else suite.run(name)
            if outcome.word in outcomes.BAD and not options.original:
                original = original or stack.enter_context(Suite(options.file, swapped=False, limit_s=options.limit_s))
                outcome = _beside(outcome, original.run(name))
            print(f"{outcome.word}: {name} {outcome.seconds:.1f} s", flush=True)
            yield outcome


def _beside(ours: Outcome, theirs: Outcome) -> Outcome:
    """Ours, unless torch's own class fails as well: one that is slow there says nothing of one that fails here."""
    if theirs.word != ours.word:
        return ours
    return Outcome(ours.test, outcomes.FAILED_BOTH_WAYS, theirs.text, ours.seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.compatibility.torch_suite", description=__doc__)
    parser.add_argument("file", type=lambda text: Path(text).resolve(strict=True), help="test_dataloader.py of PyTorch")
    parser.add_argument("--original", action="store_true", help="with torch's own DataLoader, not with PrefetchLoader")
    parser.add_argument("--all", action="store_true", help="those, too, that are else left out")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="such as '*Persistent*.test_len'")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of one test")
    return parser.parse_args()


if __name__ == "__main__":
    main()
