"""`prefetchd advise` of a daemon that works, and where there is nothing to answer about."""

from __future__ import annotations

import json

from prefetchd_client import PrefetchLoader

from tests.scenario.test_status import Slow
from tests.scenario.waiting import until


def test_it_answers_about_each_stream(daemon):
    daemon.start()
    with PrefetchLoader(Slow(0.005), batch_size=8, buffer=6, stream="slow", num_workers=2) as loader:
        batches = iter(loader)

        def advised():
            next(batches)
            done = daemon.command("advise", "--workers", "3")
            return done.stdout if "2 workers, as now" in done.stdout else None

        said = until(advised, "a minute's figures are there")
        told = json.loads(daemon.command("advise", "slow", "--workers", "3", "--json").stdout)
    assert said.startswith("slow: the trainer waits")
    for words in ("3 workers ", "a second machine", "a sample cache"):
        assert words in said
    (stream,) = told["streams"]
    assert stream["name"] == "slow"
    assert {each["what"] for each in stream["answers"]} >= {"workers", "machines", "sample cache"}
    assert all(each["low"] <= each["batches_per_s"] <= each["high"] for each in stream["answers"])


def test_without_a_stream_or_a_daemon_it_says_so(daemon):
    refused = daemon.command("advise", check=False)
    assert refused.returncode == 1
    assert "no daemon" in refused.stderr
    daemon.start()
    assert daemon.command("advise").stdout == "no streams\n"
    refused = daemon.command("advise", "nobody", check=False)
    assert refused.returncode == 1
    assert "nobody" in refused.stderr
