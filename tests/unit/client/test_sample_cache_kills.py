"""A process that stores samples dies at any line of the store, and no half-written sample is ever served."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
import torch
from prefetchd_client import SampleCache
from prefetchd_client.sample_cache import store
from torch.utils.data import Dataset

pytest.importorskip("tensordict")
LENGTH = 3


class Bytes(Dataset):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((5, 7), index + 1, dtype=torch.uint8), index


def store_until(line: int, path) -> bool:
    """Stores all samples in a process that is killed when it has passed so many lines of store.py; False when it came
    to the end."""
    child = os.fork()
    if not child:
        gc.disable()
        passed = 0

        def follow(frame, event, argument):
            nonlocal passed
            if frame.f_code.co_filename != store.__file__:
                return None
            if event == "line":
                passed += 1
                if passed == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return follow

        try:
            cache = SampleCache(Bytes(), path)
            sys.settrace(follow)
            for index in range(LENGTH):
                cache.store(index)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_a_kill_at_every_line(tmp_path):
    import tensordict

    assert tensordict.__version__, "imported before the forks, each of which would have to"
    lines = 0
    stored = set()
    while store_until(lines + 1, tmp_path / str(lines)):
        path = tmp_path / str(lines)
        lines += 1
        cache = SampleCache(Bytes(), path)
        whole = set(range(LENGTH)) - set(cache.missing()) if cache.directory.exists() else set()
        stored.add(len(whole))
        for index in whole:
            kept = cache._opened().read(index)
            assert kept[0].tolist() == [[index + 1] * 7] * 5, f"killed at line {lines}"
            assert kept[1].item() == index
        # Whoever comes next stores what is missing, and finds nothing in the way.
        assert [cache.store(index) for index in range(LENGTH)] == [0] * LENGTH
        assert cache.missing() == []
        cache.close()
        assert [each.name for each in path.iterdir() if "." in each.name] == []
    assert stored == {0, 1, 2, 3}
    assert lines > 50
