"""What scenarios of several files share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from prefetchd_client.loader import device_selection as selection

from tests.unit.client.device.devices import DEVICES, Bench


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders' workers are not forked from this process: their programs are pickled, and loaded elsewhere."""
    monkeypatch.setenv("PREFETCHD_START", "exec")


@pytest.fixture(params=DEVICES)
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A device that loaders take for CUDA's; nothing may be registered with it when they have ended."""
    found = Bench(request.param)
    if found.is_fake:
        monkeypatch.setattr(selection, "backend_for", lambda device: found.backend)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield found
    assert found.fake.violations == []
    # A device comes to what is in line there, also when nobody asks: else closed loaders would hold batches for ever,
    # and those of the next one of their name would be copies.
    found.fake.synchronize()
    gc.collect()
    assert found.fake.registered == {}, "slots are still registered after the loader's end"
