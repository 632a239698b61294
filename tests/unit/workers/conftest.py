"""Lets a test's process be like a worker's: there nobody but the seeder uses the global generators."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from prefetchd.workers import seeding, state_readers
from prefetchd.workers.state_readers import hook_state_readers

TRIAL = 3


@pytest.fixture(scope="module")
def hooked_readers():
    """Hooked as in a worker, and generators that nobody else uses. Puts everything back."""
    hooked = [(random.Random, "getstate"), (random, "getstate"), (np.random, "get_state")]
    hooked += [(np.random.mtrand, "get_state"), (seeding, "TRIAL"), (state_readers._hooks, "hooked")]
    hooked += [(where, name) for where in (torch, torch.random) for name in ("get_rng_state", "initial_seed")]
    hooked += [(torch, "__getattr__"), (torch, "default_generator")]
    before = [(owner, name, getattr(owner, name)) for owner, name in hooked]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    hook_state_readers()
    seeding.TRIAL = TRIAL
    yield
    for owner, name, value in before:
        setattr(owner, name, value)
    state_readers._hooks.seeder = None
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@pytest.fixture
def as_in_a_worker(hooked_readers, monkeypatch):
    """Nor has anybody taken torch's generator yet."""
    monkeypatch.setattr(state_readers._hooks, "is_generator_taken", False)
