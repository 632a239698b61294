"""A stream whose epochs are all equal makes its batches once, while an epoch fits the ring."""

from __future__ import annotations

import pytest

from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import DIGEST, FILL_ROWS
from tests.unit.daemon.engine.stream.test_lookback import SPEC, Run

STEPS = 5


def equal_run(*, slots: int = 8, **more) -> Run:
    return Run(0, slots=slots, length=3 * STEPS, equal_epochs=True, **more)


class Epochs:
    """Iterates as a loader does: the next iterator's cursor waits while one lives."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.trainer = run.trainer
        self.trainer.close(run.cursor)
        self.number = run.cursor + 1
        self.trainer.place(self.number, 0, 0, True)

    def take(self, *, hold_last: bool = False, stop: int = STEPS) -> None:
        """One epoch, or its first batches; of the last one the tensors live on into the next epoch."""
        self.trainer.activate(self.number)
        living = self.run.cursor = self.number
        self.number += 1
        self.trainer.place(self.number, 0, 0, True)
        for step in range(stop):
            self.run.world.come_to_rest()
            if not self.trainer.can_next(living):
                self.trainer.wait(living)
                self.run.world.come_to_rest()
            assert self.trainer.can_next(living), f"stuck at {step}"
            self.trainer.next(living, hold_last and step == stop - 1)
            if step == 0 and self.trainer.held:
                self.trainer.let_go(0)
            self.trainer.flush()
        self.run.world.come_to_rest()
        assert stop < STEPS or self.trainer.is_at_end(living)
        self.trainer.close(living)


def test_the_second_epoch_costs_nothing():
    run = equal_run()
    epochs = Epochs(run)
    epochs.take()
    assert run.made() == list(range(STEPS)), "each of them once, though the ring has more slots"
    for _ in range(3):
        epochs.take()
    assert run.made() == []


def test_no_batch_is_copied_for_it():
    run = equal_run()
    epochs = Epochs(run)
    epochs.take()
    before = dict(run.trainer.marks)
    epochs.take()
    assert sum(generation > 0 for generation in run.trainer.marks.values()) == STEPS
    assert run.trainer.marks == before, "handed out again, without a copy"


def test_what_a_holder_has_written_to_is_made_again():
    run = equal_run()
    epochs = Epochs(run)
    run.world.scribbles = lambda generation: generation == 2
    epochs.take()
    epochs.take()
    made = [step for kind, step in run.tasks if kind == FILL_ROWS]
    again = [step for step in range(STEPS) if made.count(step) > 1]
    assert len(again) == 1
    assert run.made() == list(range(STEPS))


@pytest.mark.parametrize("slots", [5, 6, 8])
def test_a_loop_that_still_has_the_last_batch_when_the_next_epoch_begins(slots):
    run = equal_run(slots=slots)
    epochs = Epochs(run)
    epochs.take(hold_last=True)
    run.made()
    for _ in range(3):
        epochs.take(hold_last=True)
    assert run.made() == []


def test_an_epoch_that_is_broken_off():
    run = equal_run()
    epochs = Epochs(run)
    epochs.take(stop=2)
    epochs.take()
    assert run.made() == list(range(STEPS))


def test_a_batch_that_is_never_let_go_is_made_again():
    run = equal_run()
    epochs = Epochs(run)
    epochs.take(hold_last=True, stop=2)
    run.made()
    held = run.trainer.held[:]
    run.cursor = epochs.number
    run.trainer.activate(epochs.number)
    for step in range(STEPS):
        run.world.come_to_rest()
        assert run.trainer.can_next(epochs.number), f"stuck at {step}"
        run.trainer.next(epochs.number, hold=True)
        if len(run.trainer.held) > 1:
            run.trainer.let_go(1)
        run.trainer.flush()
    assert run.trainer.held == held
    assert 1 in run.made()


def test_an_epoch_that_does_not_fit_the_ring_is_made_each_time():
    run = equal_run(slots=4)
    epochs = Epochs(run)
    epochs.take()
    run.made()
    epochs.take()
    assert run.made() == list(range(STEPS))
    assert DIGEST not in {kind for kind, _ in run.tasks}


def test_the_daemon_is_killed_between_two_epochs():
    run = equal_run(writes=lambda step: step == 3)
    epochs = Epochs(run)
    epochs.take()
    run.made()
    run.world.crash()
    run.world.reconnect(run.trainer)
    epochs.take()
    assert run.made() in ([], [3]), "only what its holder has written to"


def test_a_trainer_that_is_started_again_finds_the_epoch():
    run = equal_run()
    Epochs(run).take()
    run.world.goodbye(run.trainer)
    run.world.kill(run.trainer)
    run.made()
    run.trainer.cursors.clear()
    run.cursor += 1
    run.join()
    Epochs(run).take()
    assert run.made() == []


@pytest.mark.parametrize("changes", [{"order": "shuffle"}, {"on_error": "substitute"}])
def test_what_cannot_be_equal_is_refused(changes):
    with pytest.raises(CallerError, match="equal_epochs"):
        equal_run(**changes)
    assert SPEC.equal_epochs is False
