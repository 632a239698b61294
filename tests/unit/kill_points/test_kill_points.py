"""Kill points: nothing without an order; with one, the process that was meant dies where it was meant to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from prefetchd.kill_points import kill_points
from prefetchd.kill_points.kill_point_table import POINTS
from prefetchd.kill_points.kill_points import (
    LOG_VARIABLE,
    ORDERS_VARIABLE,
    OrderInFile,
    parse_orders,
    write_order,
)

ROOT = Path(__file__).parents[3]
# What the point's own file is called, and two file names.
NO_POINTS = {"daemon.sock", "daemon.log"}


def passing(path, points, **environment):
    """A process that passes the points and says so: its exit status and what it said."""
    code = (
        "import sys; from prefetchd.kill_points.kill_points import kill_point\n"
        "for point in sys.argv[1:]: kill_point(point); print(point, flush=True)"
    )
    variables = {LOG_VARIABLE: str(path / "kills"), "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", code, *points], env=variables, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout.split()


def due(orders, points):
    """Which of the passed points one of the orders is due at."""
    parsed = parse_orders(orders)
    return [place for place, point in enumerate(points) if sum(order.is_due(point) for order in parsed)]


def test_every_point_of_the_code_is_in_the_table():
    found = set()
    for path in [*(ROOT / "prefetchd").rglob("*.py"), *(ROOT / "client").rglob("*.py")]:
        if path.name not in ("kill_points.py", "kill_point_table.py"):
            found |= set(
                re.findall(
                    r'"((?:daemon|env|zygote|worker|planner|client|bridge|actor)\.\w+(?:\.\w+)?)"', path.read_text()
                )
            )
    assert found - NO_POINTS == set(POINTS)


def test_without_an_order_nothing_happens(tmp_path):
    assert kill_points.kill_point is kill_points._pass
    assert passing(tmp_path, ["worker.task.begun"] * 3) == (0, ["worker.task.begun"] * 3)
    assert not (tmp_path / "kills").exists()


def test_the_nth_passing_kills_and_is_told_first(tmp_path):
    points = ["worker.started", "worker.task.begun", "worker.task.begun", "worker.task.begun"]
    status, said = passing(tmp_path, points, **{ORDERS_VARIABLE: "daemon.start.deaf:1,worker.task.begun:2"})
    assert (status, said) == (-9, ["worker.started", "worker.task.begun"])
    point, _, role, _ = (tmp_path / "kills").read_text().split()
    assert (point, role) == ("worker.task.begun", "worker")


def test_orders_count_for_themselves():
    assert due("a.b:2, a.c", ["a.b", "a.c", "a.b", "a.c"]) == [1, 2]
    assert due("a.*:3", ["a.b", "x.b", "a.c", "a.b"]) == [3]
    assert due("", ["a.b"]) == []


def test_a_role_can_be_chosen_and_a_seed_makes_the_same_choice_again():
    points = ["worker.row.written", "daemon.message.heard"] * 500
    chosen = due("worker.*:p=0.1:seed=7", points)
    assert chosen == due("worker.*:p=0.1:seed=7", points)
    assert chosen != due("worker.*:p=0.1:seed=8", points)
    assert all(points[place].startswith("worker") for place in chosen)
    assert 20 < len(chosen) < 100


@pytest.mark.parametrize("text", ["a.b:x", "a.b:1:2", "a.b:p=x", "@/not/there"])
def test_what_is_no_order_is_an_error(text):
    with pytest.raises((ValueError, FileNotFoundError)):
        parse_orders(text)


def test_the_order_in_a_file_is_followed_by_one_process_alone(tmp_path):
    path = tmp_path / "order"
    write_order(path, 0)
    first, second = OrderInFile(str(path)), OrderInFile(str(path))
    assert not first.is_due("a.b")
    write_order(path, 1, "a.b", 2)
    assert [first.is_due("a.b"), second.is_due("a.b")] == [False, False]
    assert [first.is_due("a.b"), second.is_due("a.b")] == [True, False]
    assert (tmp_path / "order.1").exists()
    write_order(path, 2, "a.*")
    assert [second.is_due("a.c"), first.is_due("a.b")] == [True, False]
    write_order(path, 3)
    assert not first.is_due("a.b")


def test_an_order_that_is_half_rewritten_is_none(tmp_path):
    path = tmp_path / "order"
    write_order(path, 4, "a.b")
    path.write_bytes(path.read_bytes().replace(b"4 a.b", b"5 a.b"))
    assert not OrderInFile(str(path)).is_due("a.b")
