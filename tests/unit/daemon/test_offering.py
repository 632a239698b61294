"""What a consumer is told at once stays within what a session takes."""

from __future__ import annotations

from prefetchd.daemon.engine.batches import Batch
from prefetchd.daemon.engine.leases import Leases
from prefetchd.daemon.engine.offering import Offering
from prefetchd.daemon.engine.window import Window
from prefetchd.daemon.sessions import OUTBOX_LIMIT
from prefetchd.ring.cursors import EpochLengths
from prefetchd.ring.policy import Ring
from prefetchd.wire.messages import Published


def test_failures_are_told_a_few_at_a_time():
    """A consumer that pauses while a thousand batches fail must not be cut off for it when it comes back."""
    window = Window(EpochLengths(1000), lambda slot, record: None)
    window.ring = Ring(1000)
    window.ring.reserve(1000)
    offering = Offering(window, Leases(window))
    offering.place_cursor(("trainer", 1), (0, 0), waiting=False)
    for step in range(1000):
        window.batches[0, step] = Batch((0, step), 1, error=b"it failed")
    told = []
    while messages := offering.publications("trainer"):
        assert len(messages) < OUTBOX_LIMIT // 2
        told += messages
    assert len([message for message in told if hasattr(message, "error")]) == 1000


def test_an_end_is_told_once_it_is_known_how_the_epoch_ends():
    class Known:
        ended = False

        def has_begun(self, epoch: int) -> bool:
            return True

        def has_ended(self, epoch: int) -> bool:
            return self.ended

    known = Known()
    window = Window(EpochLengths(0), lambda slot, record: None)
    offering = Offering(window, Leases(window), known)
    offering.place_cursor(("trainer", 1), (0, 0), waiting=False)
    assert not offering.has_news("trainer")
    known.ended = True
    assert offering.publications("trainer") == [Published((), ((1, 0, 0),), ())]
    assert not offering.has_news("trainer")
