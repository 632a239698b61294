"""What became of each test, and what that says of all."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

PASSED = "passed"
FAILED = "failed"
TIMED_OUT = "timed out"
SKIPPED = "skipped"
LEFT_OUT = "left out"
FAILED_BOTH_WAYS = "failed both ways"

BAD = (FAILED, TIMED_OUT)

GOAL = 0.98


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`word` is one of those above. `text` is the traceback, or the reason why it did not run."""

    test: str
    word: str
    text: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Summary:
    """Of the tests that ran: those that torch's own class fails as well say nothing of ours."""

    outcomes: tuple[Outcome, ...]

    def of(self, *words: str) -> list[Outcome]:
        return [each for each in self.outcomes if each.word in words]

    @property
    def counted(self) -> int:
        return len(self.of(PASSED, *BAD))

    @property
    def share(self) -> float:
        """Of those that count, how many passed; none of none."""
        return len(self.of(PASSED)) / self.counted if self.counted else 0.0

    @property
    def reaches(self) -> bool:
        return self.share >= GOAL


def lines(summary: Summary) -> Iterable[str]:
    """The report: what failed first, then what did not run and why, then the figures."""
    for outcome in summary.of(*BAD):
        yield f"{outcome.word}: {outcome.test}"
        yield from (f"    {line}" for line in outcome.text.strip().splitlines())
    for word in (FAILED_BOTH_WAYS, LEFT_OUT, SKIPPED):
        yield from _by_reason(word, summary.of(word))
    yield (
        f"{len(summary.of(PASSED))} of {summary.counted} passed ({summary.share:.1%}); "
        f"{len(summary.of(FAILED))} failed, {len(summary.of(TIMED_OUT))} timed out; "
        f"apart from these {len(summary.of(FAILED_BOTH_WAYS))} that fail with DataLoader too, "
        f"{len(summary.of(LEFT_OUT))} left out, {len(summary.of(SKIPPED))} that the file itself skips here"
    )


def _by_reason(word: str, outcomes: list[Outcome]) -> Iterable[str]:
    tests = collections.defaultdict(list)
    for each in outcomes:
        # Of a traceback the last line says most.
        tests[each.text.strip().splitlines()[-1] if each.text.strip() else ""].append(each.test)
    for reason, names in tests.items():
        yield f"{word}: {reason}"
        yield from (f"    {name}" for name in names)
