"""Kills for memory, as the cgroup counts them."""

from __future__ import annotations

import pytest

from prefetchd.supervisor.oom_kills import RECENT_S, OomKills


class Group:
    """A memory cgroup of version 1 or 2, in a directory."""

    def __init__(self, directory, version: int, visible: str) -> None:
        self.root = directory / "cgroup"
        self.membership = directory / "membership"
        base = self.root / "memory" if version == 1 else self.root
        own = base / visible
        own.mkdir(parents=True)
        if version == 2:
            (self.root / "cgroup.controllers").touch()
        line = "4:memory:/jobs/mine" if version == 1 else "0::/jobs/mine"
        self.membership.write_text(f"{line}\n")
        self.file = own / ("memory.oom_control" if version == 1 else "memory.events")
        self.before = "oom_kill_disable 0\nunder_oom 0\n" if version == 1 else "low 0\nhigh 7\nmax 3\noom 9\n"
        self.after = "" if version == 1 else "oom_group_kill 0\n"
        self.kill(0)

    def kill(self, count: int) -> None:
        self.file.write_text(f"{self.before}oom_kill {count}\n{self.after}")

    def watched(self) -> OomKills:
        return OomKills(0.0, str(self.root), str(self.membership))


@pytest.fixture(params=[(1, "jobs/mine"), (2, "jobs/mine"), (1, ""), (2, "")], ids=str)
def group(request, tmp_path):
    return Group(tmp_path, *request.param)


def test_new_kills_are_noticed_once(group):
    kills = group.watched()
    assert not kills.look(1.0)
    group.kill(2)
    assert kills.look(2.0)
    assert not kills.look(3.0)


def test_each_kill_explains_one_death(group):
    group.kill(4)
    kills = group.watched()
    assert kills.claim(1.0) == 0, "those were before"
    group.kill(6)
    assert [kills.claim(1.1) for _ in range(3)] == [6, 6, 0]
    group.kill(7)
    kills.look(2.0)
    assert kills.claim(2.0 + RECENT_S) == 7


def test_a_kill_of_long_ago_was_somebody_else_s(group):
    kills = group.watched()
    group.kill(1)
    kills.look(1.0)
    kills.look(1.0 + RECENT_S + 1)
    assert kills.claim(1.0 + RECENT_S + 1) == 0


def test_without_a_group_nothing_is_told(tmp_path):
    kills = OomKills(0.0, str(tmp_path / "none"), str(tmp_path / "nothing"))
    assert kills.claim(0.0) == 0


def test_a_group_that_goes_away_tells_nothing(group):
    kills = group.watched()
    group.file.unlink()
    assert kills.claim(1.0) == 0
    group.file.write_text("garbage\n\n")
    assert kills.claim(1.0) == 0
