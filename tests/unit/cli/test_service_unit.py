"""A daemon's unit is found by its control group, and restarted only if that keeps the rings."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from prefetchd.cli import service_unit
from prefetchd.cli.service_unit import ServiceUnit, unit_of


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/prefetchd.service\n", "prefetchd.service"),
        ("0::/system.slice/system-prefetchd.slice/prefetchd@ada.service\n", "prefetchd@ada.service"),
        ("4:memory:/x.service\n1:name=systemd:/system.slice/y.service\n", "y.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/\n", ""),
    ],
)
def test_the_last_part_of_its_control_group_is_its_unit(monkeypatch, groups, name):
    monkeypatch.setattr(service_unit, "Path", lambda path: SimpleNamespace(read_text=lambda _: groups))
    assert service_unit._name_of(7) == name


def test_the_manager_that_has_started_it_is_asked(monkeypatch, systemctl):
    log = systemctl("10", manager="--user")
    monkeypatch.setattr(service_unit, "_name_of", lambda pid: "prefetchd.service")
    assert unit_of(43) is None
    assert unit_of(42).has_main_process(42)
    systemctl("10", manager="show")
    unit = unit_of(42)
    unit.restart()
    assert log.read_text().splitlines()[-1] == "restart prefetchd.service"


def test_a_process_that_is_gone_has_none():
    assert unit_of(2**22 + 1) is None


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """systemctl(signal) puts one into the PATH that tells this signal, and the unit's process to who asks it beginning
    with `manager`; it notes what it is asked."""
    log = tmp_path / "asked"

    def write(keeping_signal: str, manager: str = "--user") -> Path:
        program = tmp_path / "systemctl"
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {log}\n'
            f'case "$*" in *RestartKillSignal*) echo {keeping_signal};; {manager}*MainPID*) echo 42;; '
            "*MainPID*) exit 1;; esac\n"
        )
        program.chmod(0o700)
        return log

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return write


def test_the_unit_is_restarted_by_systemctl(systemctl):
    log = systemctl("10")
    unit = ServiceUnit("prefetchd.service", of_user=True)
    assert unit.has_main_process(42)
    assert not unit.has_main_process(43)
    unit.restart()
    assert log.read_text().splitlines()[-1] == "--user restart prefetchd.service"


def test_a_unit_that_would_drop_the_rings_is_not_restarted(systemctl):
    log = systemctl("15")
    with pytest.raises(click.ClickException, match="prefetchd systemd install"):
        ServiceUnit("prefetchd.service", of_user=True).restart()
    assert " restart " not in log.read_text()
