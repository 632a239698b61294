"""The daemon has no descriptor left: a stream is told so, with what to turn, and others go on; with more it goes on."""

from __future__ import annotations

import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import PrefetchdError

from prefetchd.status.snapshot import read_report
from tests.scenario.datasets import Numbers
from tests.scenario.scarcity import few_descriptors_left
from tests.scenario.waiting import report_when, stream_when

EPOCHS = 3


def has_all_it_needs(stream: dict) -> bool:
    return stream["program_kept"] and [each["stage"] for each in stream["workers"]] == ["ready"]


@pytest.mark.parametrize("start", ["fork", "exec"])
@pytest.mark.parametrize("left", [1, 2, 3, 4, 5, 7, 9, 11, 13, 15, 17])
def test_whatever_cannot_be_opened_the_daemon_lives_and_with_more_descriptors_the_stream_does(
    shared_daemon, monkeypatch, left, start
):
    monkeypatch.setenv("PREFETCHD_START", start)
    if not shared_daemon.socket.exists():
        shared_daemon.start()
    pid = shared_daemon.pid
    with PrefetchLoader(Numbers(24), batch_size=4, num_workers=1, stream="before") as before:
        assert len(list(before)) == 6
        stream_when(shared_daemon, "before", has_all_it_needs, "it needs no more processes")
        with few_descriptors_left(pid, left):
            failed = None
            try:
                loader = PrefetchLoader(Numbers(24), batch_size=4, num_workers=2, stream=f"scarce {start} {left}")
            except PrefetchdError as error:
                failed = error
            up_s = read_report(shared_daemon.paths).snapshot["daemon"]["up_s"]
            report_when(shared_daemon, lambda it: it.snapshot["daemon"]["up_s"] > up_s + 1, "it comes round")
        for _ in range(EPOCHS):
            assert len(list(before)) == 6, "who was there before goes on"
        try:
            if failed is None:
                for _ in range(EPOCHS):
                    assert len(list(loader)) == 6
        except PrefetchdError as error:
            failed = error
        finally:
            if "loader" in locals():
                loader.close()
        if failed is not None:
            assert "ulimit -n" in str(failed), "what to turn"
            with PrefetchLoader(Numbers(24), batch_size=4, num_workers=2, stream=f"anew {start} {left}") as anew:
                assert len(list(anew)) == 6
    assert shared_daemon.pid == pid
