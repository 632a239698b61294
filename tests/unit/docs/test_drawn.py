"""What is drawn is what the code and the figures say today: else run `python -m tests.unit.docs.draw`."""

from __future__ import annotations

import ast
import re

import pytest

from prefetchd.ring.policy import TABLE, SlotEvent, SlotState
from prefetchd.wire.messages import MESSAGE_TYPES
from tests.unit.docs import draw
from tests.unit.docs.chart import beside_others, throughputs

PARTS = [pytest.param(file, name, id=f"{file}: {name}") for file, parts in draw.DRAWN.items() for name in parts]


@pytest.mark.parametrize(("file", "name"), PARTS)
def test_what_is_drawn_is_what_it_is_drawn_from(file, name):
    text = (draw.ROOT / file).read_text("utf-8")
    assert draw.drawn_part(text, name) == draw.DRAWN[file][name](), "run `python -m tests.unit.docs.draw`"


@pytest.mark.parametrize(("file", "name"), PARTS)
def test_drawing_again_changes_nothing(file, name):
    text = (draw.ROOT / file).read_text("utf-8")
    assert draw.with_part(text, name, draw.drawn_part(text, name)) == text


def test_the_map_has_every_package():
    assert sorted(draw.PACKAGES) == sorted(draw.packages())


@pytest.mark.parametrize(
    ("top", "package"), [("prefetchd", "prefetchd"), ("client/prefetchd_client", "prefetchd_client")]
)
def test_every_room_has_its_layer(top, package):
    rooms = {room.removeprefix(f"{top}/") for room in draw.packages() if room.startswith(f"{top}/")}
    # Units are data, which nobody imports.
    drawn = {name for layer in draw.layers(package) for name in layer.split(" | ")}
    assert {room for room in rooms if "/" not in room} - drawn - {"units"} == set()


def test_every_move_of_the_table_is_an_arrow():
    arrows = [line.split(": ") for line in draw.slot_states().splitlines() if ": " in line]
    drawn = {(move.strip(), event) for move, events in arrows for event in events.split(", ")}
    assert drawn == {(f"{before.name} --> {after.name}", event.value) for (before, event), after in TABLE.items()}


def test_another_table_is_another_picture(monkeypatch):
    before = draw.slot_states()
    monkeypatch.setitem(TABLE, (SlotState.READY, SlotEvent.QUARANTINE), SlotState.QUARANTINED)
    assert draw.slot_states() != before
    assert "    READY --> QUARANTINED: quarantine" in draw.slot_states().splitlines()


def test_every_message_has_a_direction():
    found = draw.directions()
    assert set(found) == {cls.__name__ for cls in MESSAGE_TYPES.values()}
    assert all(re.fullmatch(r"[a-z ]+ to [a-z ,]+", each) for each in found.values()), found


@pytest.mark.parametrize(
    ("peer", "code"),
    [("trainer", "client/**/*.py"), ("command", "prefetchd/cli/**/*.py"), ("zygote", "prefetchd/*/zygote*.py")],
)
def test_each_peer_s_code_knows_the_messages_that_are_directed_from_or_to_it(peer, code):
    # Processes of the daemon's own, though they are made of the client's parts.
    files = [each for each in draw.ROOT.glob(code) if each.name not in ("declared.py", "fork_work.py")]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {alias.name for node in imports if node.module == "prefetchd.wire.messages" for alias in node.names}
    found = draw.directions()
    assert found.keys() & known == {name for name, direction in found.items() if peer in direction}


def test_the_chart_has_every_throughput_beside_dataloader_s_and_nothing_else():
    text = """
| what | prefetchd | DataLoader | ratio | to reach |
|---|---|---|---|---|
| text | 383 batches/s | 226 batches/s | 1.53 (1.51 to 1.96) of DataLoader | 1.2 |
| train | 14 img/s | 8 img/s | 7 img/s | 0.8 (14 to 21) of DataLoader | 10 |
| next() | p50 23 us | p50 15,600 us | 678 of DataLoader | p50 30 us |
| gather | 36,076 img/s | 14,202 img/s | | 2.8 (2.5 to 3.3) of the recipe | 3 |
"""
    assert throughputs(text) == {"text": 1.53, "train": 0.8}


def test_the_chart_of_a_work_has_every_contestant_that_was_measured_in_it():
    text = """
### A work

|  | samples/s | CPU-s a 1,000 samples |
|---|---|---|
| ours | 2,726 (2,700 to 2,750) | 0.72 |
| theirs | 950 | 1.7 |
| another | - | - |

### Another work

| ours | 1 | 1 |
"""
    assert beside_others(text, "A work") == {"ours": 2726, "theirs": 950}
