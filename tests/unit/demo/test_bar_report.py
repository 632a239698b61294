"""What the demo's bars are of, and what it says below them."""

from __future__ import annotations

import dataclasses

from prefetchd_demo.bar_report import bar_groups, notes
from prefetchd_demo.comparison import Life, Measured
from prefetchd_demo.conditions import Conditions
from prefetchd_demo.own_daemon import RingFill
from prefetchd_demo.trainer_messages import Opened, Progress, Validated

CONDITIONS = Conditions(2000, 3, 64, 2, RingFill(13, 27), "Some CPU, 2 CPUs, 24 GiB; torch 2.14.1")


def life(first_batch_s, stalled_s, validated, from_start_s=4.0):
    progress = Progress(2, 29, 29, 0.5, 0.9, 800.0, stalled_s, first_batch_s, 100.0)
    return Life(Opened(2000, 10), None, progress, validated, from_start_s)


def measured(loss):
    return Measured(
        life(0.7, 5.0, Validated(1, 0.4, 0.5, 0.9, 4.5)), life(0.3, 1.0, Validated(2, loss, 0.4, 0.9, 1.25))
    )


def test_each_group_has_each_loader():
    groups = bar_groups({"prefetchd": measured(0.3), "DataLoader": measured(0.3)})
    assert [list(group.seconds) for group in groups] == [["prefetchd", "DataLoader"]] * 4


def test_waits_of_both_trainers_are_added_those_of_their_last_validation_too():
    stalled, first_batch, again, from_start = bar_groups({"prefetchd": measured(0.3)})
    assert stalled.seconds == {"prefetchd": 5.0 + 1.25}
    assert first_batch.seconds == {"prefetchd": 0.7}
    assert again.seconds == {"prefetchd": 0.3}
    assert from_start.seconds == {"prefetchd": 4.0}


def test_equal_losses_are_told_once_in_all_digits():
    lines = notes({"prefetchd": measured(0.1 + 0.2), "DataLoader": measured(0.1 + 0.2)}, CONDITIONS)
    assert lines[0].endswith("the same with all to the last digit: training 0.30000000000000004, validation 0.4.")


def test_losses_that_differ_in_the_last_digit_are_told_one_by_one():
    losses, *_ = notes({"prefetchd": measured(0.1 + 0.2), "DataLoader": measured(0.3)}, CONDITIONS)
    assert losses == (
        "Losses of the last epoch differ: prefetchd: training 0.30000000000000004, validation 0.4; "
        "DataLoader: training 0.3, validation 0.4."
    )


def test_what_the_figures_hold_for():
    text = "\n".join(notes({"prefetchd": measured(0.3)}, CONDITIONS))
    assert "2,000 images, 3 epochs, batches of 64, 2 workers each." in text
    assert "The new trainer found 13 batches ready in the ring of 27." in text
    assert "Machine: Some CPU" in text
    assert "ready" not in "\n".join(notes({"DataLoader": measured(0.3)}, dataclasses.replace(CONDITIONS, ring=None)))
