"""A process of another user, where the test may make one; and whether it may."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.conftest import NEEDS_ROOT
from tests.scenario.forked import forked, told_by

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)


def become_nobody() -> None:
    """This process is another user's from here on."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def as_nobody(work: Callable[[], object]) -> str:
    """Runs work() as another user; what it returned, as text. Fails with its traceback when it raised."""

    def change_and_work() -> object:
        become_nobody()
        return work()

    return told_by(forked(change_and_work))
