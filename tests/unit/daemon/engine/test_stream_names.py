"""Names of streams that stand beside others, and what a trainer that asks by one of them may have."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.stream_names import beside, related
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 40, 4)
OTHER = dataclasses.replace(SPEC, fingerprint="1" * 32)


@pytest.mark.parametrize("asked", ["train.py:0", "train.py:0#2", "train.py:3", "train.py:3#7"])
def test_all_that_loaders_of_one_script_left_is_related(asked):
    names = ["train.py:0", "train.py:0#2", "train.py:1", "train.py:3#7", "train.py:0@1", "test.py:0", "train.py"]
    found = related(dict.fromkeys(names), asked)
    assert sorted(found) == ["train.py:0", "train.py:0#2", "train.py:1", "train.py:3#7"]
    assert found[0] == asked or asked not in names


@pytest.mark.parametrize("asked", ["mine", "mine#2"])
def test_of_a_name_that_was_given_what_stands_beside_it_is_related(asked):
    assert sorted(related(dict.fromkeys(["mine", "mine#2", "mine#3", "mine2", "other"]), asked)) == [
        "mine",
        "mine#2",
        "mine#3",
    ]


@pytest.mark.parametrize(
    ("asked", "there", "given"),
    [
        ("a", ["a"], "a#2"),
        ("a", ["a", "a#2"], "a#3"),
        ("a#2", ["a#2"], "a#3"),
        ("a#2", ["a", "a#2", "a#3"], "a#4"),
        ("a#2#2", ["a#2#2"], "a#2"),
        ("a", ["a", "a#2", "a#3", "a#4"], "a#3"),
    ],
)
def test_the_next_name_stands_beside_the_first(asked, there, given):
    free = {"a#3"} if len(there) == 4 else set()
    assert beside({name: name for name in there}, asked, lambda stream: stream in free) == given


def test_what_one_leaves_that_came_back_under_another_name_is_found_again():
    """Found by chaos: who came back to find its name taken got one beside that, `train.py:0#2#2`, and the next loader
    of the script did not look there. All that was ready was made again."""
    world = World(slots=4)
    first, second = world.join(OTHER, "train.py:0"), world.join(SPEC, "train.py:0")
    assert second.stream_name == "train.py:0#2"
    world.crash()
    # Neither had a ring that would have kept its name, and somebody else comes first.
    world.join(dataclasses.replace(SPEC, fingerprint="2" * 32), "train.py:0")
    world.reconnect(first)
    world.reconnect(second)
    assert [first.stream_name, second.stream_name] == ["train.py:0#2", "train.py:0#3"]
    second.place(1, 0, 0, True)
    world.come_to_rest()
    left = second.stream_name
    world.goodbye(second)
    world.kill(second)
    again = world.join(SPEC, "train.py:0")
    assert again.stream_name == left
