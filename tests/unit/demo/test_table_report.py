"""The demo's table, of a training on the CPU."""

from __future__ import annotations

import dataclasses

from prefetchd_demo.conditions import Conditions
from prefetchd_demo.own_daemon import RingFill
from prefetchd_demo.table_report import Figures, side_by_side

FIGURES = {
    "prefetchd": Figures(1241.6, 3.214, 0.7306, 0.0151, 2.44),
    "DataLoader": Figures(805.2, 0.734, 11.26, 0.2634, 3.01),
}
CONDITIONS = Conditions(2000, 3, 64, 2, RingFill(26, 27), "Some CPU, 2 CPUs, 24 GiB; torch 2.14.1")

WIDE = """\
                                prefetchd   DataLoader
──────────────────────────────────────────────────────
img/s                               1,242          805
first batch                        3.21 s       734 ms
stalled                            731 ms       11.3 s
first batch after the restart       15 ms       263 ms

2,000 images, 3 epochs, batches of 64, 2 workers each.
img/s and stalled (time in next()) count from the first batch on; first batch counts from the loader's construction.
Counted from the start of the restarted process, imports included, the first batch took 2.4 s and 3.0 s.
The new trainer found 26 batches ready in the ring of 27.
Machine: Some CPU, 2 CPUs, 24 GiB; torch 2.14.1."""

NARROW = """\
                  prefetchd   DataLoader
────────────────────────────────────────
img/s                 1,242          805
first batch          3.21 s       734 ms
stalled              731 ms       11.3 s
first batch           15 ms       263 ms
after the
restart

2,000 images, 3 epochs, batches of 64, 2
workers each."""


def test_a_wide_table():
    assert side_by_side(FIGURES, CONDITIONS, 120) == WIDE


def test_a_narrow_table_wraps_its_titles_and_keeps_its_figures():
    text = side_by_side(FIGURES, CONDITIONS, 40)
    assert text.startswith(NARROW)
    assert max(map(len, text.splitlines())) <= 40


def test_one_epoch_and_no_ring():
    text = side_by_side(FIGURES, dataclasses.replace(CONDITIONS, epochs=1, ring=None), 120)
    assert "2,000 images, 1 epoch, batches" in text
    assert "ready" not in text
