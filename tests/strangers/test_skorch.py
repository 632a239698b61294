"""skorch: fitting, predicting, searching, resuming, and a fit that is interrupted."""

from __future__ import annotations

import json

import pytest

from tests.strangers.both_ways import FOR_SKORCH, run_both_ways

PAGE_S_LINES = f"""
{FOR_SKORCH}
found = [type(net.get_iterator(net.get_dataset(X))).__name__]
found += losses(net.set_params(max_epochs=2, verbose=0).fit(X, Y))
pathlib.Path("page.json").write_text(json.dumps(found))
"""
"""What docs/libraries.md shows, and a fit of it."""


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    directory = tmp_path_factory.mktemp("skorch")
    found = run_both_ways(strangers_daemon, "train_skorch", "skorch", directory, PAGE_S_LINES)
    return found, json.loads((directory / "prefetchd" / "page.json").read_text())


@pytest.mark.parametrize(
    "part",
    [
        "fitted",
        "shuffled_by_a_generator",
        "shuffled_anew_by_each_fit",
        "classes_given",
        "saved_and_resumed",
        "stopped",
        "searched",
        "of_datasets",
    ],
)
def test_it_is_the_same(runs, part):
    runs[0].assert_same(part)


def test_every_batch_was_ours(runs):
    runs[0].assert_no_iterator_of_torch()


def test_the_lines_of_the_page(runs):
    kind, *losses = runs[1]
    assert kind == "PrefetchLoader"
    assert [len(each) for each in losses] == [2, 2, 2]
