"""Fairness decides whose turn it is, where workers are fewer than streams want: start-time fair queueing, weighted by
need. Pure.

Inputs: the streams that may have a turn; of each, whether it has a consumer, whether that is short (supply), and the
seconds that its tasks are expected to take, and have taken. Tasks are not interrupted.

Rules (Goyal, Vin, Cheng, SIGCOMM 1996; with several workers: Jin, Chase, Kaur, SIGMETRICS 2004)
 1. Whoever has a consumer comes before all that have none.
 2. Each stream has a tag: the virtual time up to which it has had its part. The lowest tag is next. A task begins at
    its stream's tag, or at the latest time at which any has begun if that is later, and moves the tag on by the price
    of the seconds that it is expected to take; when it ends, by the price of what it has taken more or less.
 3. A second costs 1, and PRICE_OF_PLENTY while the stream is not short.
 4. When a stream becomes short, what it has paid beyond 1 for each second is forgotten.
 5. The stream that is next and may not have a worker now, as too many are busy, waits for one: nobody is given more
    meanwhile. (Pool holds this.)

Invariants, with L workers that may be busy at once, n streams with a consumer that have something to fill, of which the
longest tasks take l seconds
 a. Fair: a stream that is short has, over any T seconds, at least T L / n worker seconds, less what tasks allow that
    are not interrupted: (D + 1) (its own l + the longest l), D being the tasks that are under way at once. By rules 3
    and 4 nobody's tag is ever lower than with a price of 1: need gives to those that are short, and takes only from
    those that are not.
 b. By need: one that is not short has at most 1 / PRICE_OF_PLENTY of the time of one that is, and those tasks more.
 c. Nobody starves: the tags of all others come to meet the tag of whoever waits. It has at least 1 / PRICE_OF_PLENTY of
    the time of each other, less those tasks.
 d. One that comes late, or had nothing to fill for a while, is neither paid for that time nor made to pay: it is next
    when the first task ends.
"""

from __future__ import annotations

import dataclasses

PRICE_OF_PLENTY = 8
"""The price of a second for a stream that has enough: so a large ring is filled beside a trainer that waits, and takes
a ninth."""


@dataclasses.dataclass(slots=True)
class Account:
    """The seconds of virtual time that one stream has had: its tag is `paid_s`, and while it is not short `extra_s`
    more (rule 4)."""

    paid_s: float = 0.0
    extra_s: float = 0.0

    def tag_s(self, *, short: bool) -> float:
        """Returns where the stream's next task would begin (rule 2)."""
        return self.paid_s if short else self.paid_s + self.extra_s


@dataclasses.dataclass(frozen=True, slots=True)
class Charge:
    """The seconds that a task was charged when it began, and whether as plenty (rule 3)."""

    seconds: float = 0.0
    as_plenty: bool = False


NOTHING = Charge()
"""The charge of a task that has not begun."""


class FairShares:
    """Keeps the virtual time of one pool."""

    def __init__(self) -> None:
        self._begun_s = 0.0

    def begin(self, account: Account, expected_s: float, *, short: bool) -> Charge:
        """Charges the stream for its next task, which begins (rules 2 to 4)."""
        start_s = max(account.tag_s(short=short), self._begun_s)
        if short or start_s > account.tag_s(short=False):
            account.paid_s, account.extra_s = start_s, 0.0
        self._begun_s = start_s
        _charge(account, expected_s, as_plenty=not short)
        return Charge(expected_s, not short)

    @staticmethod
    def end(account: Account, charge: Charge, took_s: float) -> None:
        """Charges what a task that has ended took more, or less, than expected (rule 2)."""
        _charge(account, took_s - charge.seconds, as_plenty=charge.as_plenty)


def _charge(account: Account, seconds: float, *, as_plenty: bool) -> None:
    account.paid_s += seconds
    if as_plenty:
        # What was forgotten meanwhile (rule 4) is not taken back.
        account.extra_s = max(0.0, account.extra_s + (PRICE_OF_PLENTY - 1) * seconds)
