"""What would be lost in a restart is told, and nothing else."""

from __future__ import annotations

from prefetchd import __version__
from prefetchd.cli.losses import losses, why_not_kept
from prefetchd.wire.layout_versions import LAYOUTS
from prefetchd.wire.messages import PROTOCOL_VERSION
from tests.unit.cli.examples import consumer, report, ring, stream


def snapshot(*streams, **about):
    found = report(*streams).snapshot
    found["daemon"] |= {"software": __version__, "protocol": PROTOCOL_VERSION, "layouts": dict(LAYOUTS), **about}
    return found


FULL = stream(name="full", ring=ring(ready=14, slots_a_batch=2.0, segment_bytes=3 << 20), consumers=[consumer(pid=7)])
MEASURED = stream(name="new", ring=None, consumers=[])


def test_a_daemon_like_this_one_loses_nothing():
    assert losses(snapshot(FULL, MEASURED)) == []


def test_rings_of_another_layout_are_lost_with_their_batches():
    (line,) = losses(snapshot(FULL, MEASURED, layouts=LAYOUTS | {"ring": 99}))
    assert line.startswith("stream 'full': 7 batches ready, 3.0 MiB: ")
    assert f"ring 99 there, {LAYOUTS['ring']} here" in line


def test_batches_that_are_files_stay():
    assert losses(snapshot(FULL | {"store": "files"}, layouts={})) == []


def test_a_daemon_that_tells_no_layouts_cannot_keep():
    found = snapshot(FULL, software="0.0.1")
    del found["daemon"]["layouts"]
    assert why_not_kept(found) == "prefetchd 0.0.1 drops its rings when it ends"
    assert len(losses(found)) == 1
    found["streams"] = []
    assert losses(found) == [], "there is none to be dropped"


def test_trainers_of_another_protocol_are_named():
    found = losses(
        snapshot(FULL, stream(name="other", ring=None, consumers=[consumer(pid=8), consumer(pid=7)]), protocol=1)
    )
    assert [line.split(":")[0] for line in found] == [
        f"the trainer {pid} speaks protocol 1, this prefetchd {PROTOCOL_VERSION}" for pid in (7, 8)
    ]
    assert losses(snapshot(MEASURED, protocol=1)) == []
