"""What consumers are told, and when not yet."""

from __future__ import annotations

from typing import ClassVar

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.leases import Leases
from prefetchd.daemon.engine.stream.offering import Offering
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.daemon.sockets.sessions import OUTBOX_LIMIT
from prefetchd.ring.cursors import EpochLengths
from prefetchd.ring.policy import Ring
from prefetchd.wire.messages import Published, Recall


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
        wanted: ClassVar = []

        def has_begun(self, epoch: int) -> bool:
            return True

        def has_ended(self, epoch: int) -> bool:
            return self.ended

        def want_beginning(self, epoch: int) -> None: ...

        def want_end(self, epoch: int) -> None:
            self.wanted.append(epoch)

    known = Known()
    window = Window(EpochLengths(0), lambda slot, record: None)
    offering = Offering(window, Leases(window), known)
    offering.place_cursor(("trainer", 1), (0, 0), waiting=False)
    assert not offering.has_offers("trainer")
    assert known.wanted == [], "who only asks has nothing found out"
    offering.prepare("trainer")
    assert known.wanted == [0]
    known.ended = True
    assert offering.publications("trainer") == [Published((), ((1, 0, 0),), ())]
    assert not offering.has_offers("trainer")


def ready(window: Window, leases: Leases, steps: int) -> Offering:
    """A cursor in epoch 0 of `steps` ready batches, all offered."""
    window.ring = Ring(steps)
    window.ring.reserve(steps)
    for step in range(steps):
        grant = window.ring.claim()
        assert grant is not None
        window.ring.fill(grant)
        window.batches[0, step] = Batch((0, step), 1, grant, filled=True)
    offering = Offering(window, leases)
    offering.place_cursor(("trainer", 1), (0, 0), waiting=False)
    (published,) = offering.publications("trainer")
    assert len(published.batches[0]) == 4 + 2 * steps
    return offering


def test_what_is_recalled_twice_is_offered_again_after_the_second_answer():
    """A consumer has dropped what it was offered between its two answers."""
    window = Window(EpochLengths(4), lambda slot, record: None)
    offering = ready(window, Leases(window), 4)
    for _ in range(2):
        assert offering.void(range(9)) == [("trainer", Recall(1, 0))]
    offering.give_back(("trainer", 1), 0)
    assert not offering.has_offers("trainer")
    offering.give_back(("trainer", 1), 0)
    assert offering.has_offers("trainer")


def test_only_offers_of_the_void_epochs_are_recalled_and_their_ends_are_told_anew():
    lengths = EpochLengths(4)
    window = Window(lengths, lambda slot, record: None)
    offering = ready(window, Leases(window), 4)
    offering.place_cursor(("trainer", 2), (3, 4), waiting=False)
    assert offering.publications("trainer") == [Published((), ((2, 3, 4),), ())]
    assert offering.void(range(4, 9)) == []
    assert not offering.has_offers("trainer")
    assert offering.void(range(1, 9)) == []
    assert offering.publications("trainer") == [Published((), ((2, 3, 4),), ())]


def test_whoever_comes_while_another_holds_batches_gets_copies():
    """Each may hold half of the ring: two would hold all of it, and nothing could be made any more."""
    window = Window(EpochLengths(8), lambda slot, record: None)
    leases = Leases(window)
    offering = ready(window, leases, 4)
    offering.yielded_up_to(("trainer", 1), 4)
    offering.close_cursor(("trainer", 1))
    for slot, grant in enumerate(grants := [lease.grant for lease in leases._leases["trainer", 1].values()]):
        if slot >= 2:
            leases.release(("trainer", 1), grant.slot, grant.generation)
    assert leases.held("trainer") == 2, "it has closed its loader, and these live on"

    def offer(step: int) -> tuple[int, ...]:
        assert window.ring is not None
        grant = window.ring.claim()
        assert grant is not None
        window.ring.fill(grant)
        window.batches[0, step] = Batch((0, step), 1, grant, filled=True)
        (published,) = offering.publications("later")
        return published.batches[0][:4]

    offering.place_cursor(("later", 1), (0, 4), waiting=False)
    assert offer(4) == (1, 0, 4, 1)
    for grant in grants[:2]:
        leases.release(("trainer", 1), grant.slot, grant.generation)
    assert offer(5) == (1, 0, 5, 0), "what the other held is free"
