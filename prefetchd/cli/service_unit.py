"""Finds the systemd unit that a daemon runs in, and restarts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from prefetchd.daemon.main import KEEPING_SIGNAL

RESTART_TIMEOUT_S = 120.0


class ServiceUnit:
    """One unit, of the user's manager or the system's."""

    def __init__(self, name: str, *, of_user: bool) -> None:
        self.name = name
        self._systemctl = ["systemctl", *(["--user"] if of_user else [])]

    def has_main_process(self, pid: int) -> bool:
        """True when this manager says that `pid` is what it has started for the unit."""
        try:
            return self._property("MainPID") == str(pid)
        except click.ClickException:
            return False

    def restart(self) -> None:
        """Restarts the unit, so that the daemon keeps its rings. Returns when the next one serves. Raises
        ClickException, also when the unit is one that would drop them."""
        if self._property("RestartKillSignal") not in (str(int(KEEPING_SIGNAL)), KEEPING_SIGNAL.name):
            raise click.ClickException(
                f"the unit {self.name} is of an older prefetchd: its restart would drop the rings. Write it anew with "
                "`prefetchd systemd install --no-start`, then `systemctl daemon-reload` (--user for units of yours)"
            )
        self._run("restart", self.name)

    def _property(self, name: str) -> str:
        return self._run("show", "--property", name, "--value", self.name).strip()

    def _run(self, *arguments: str) -> str:
        command = [*self._systemctl, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RESTART_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise click.ClickException(f"`{' '.join(command)}` fails: {error}") from None
        if done.returncode:
            raise click.ClickException(f"`{' '.join(command)}` fails: {done.stderr.strip()}")
        return done.stdout


def unit_of(pid: int) -> ServiceUnit | None:
    """Returns the unit of which systemd says that it has started the process for it: of the user's manager, or else the
    system's. None when there is none, and where systemd is not."""
    name = _name_of(pid)
    if not name:
        return None
    units = (ServiceUnit(name, of_user=of_user) for of_user in (True, False))
    return next((unit for unit in units if unit.has_main_process(pid)), None)


def _name_of(pid: int) -> str:
    """Returns the name of the service whose control group the process is in; empty when that is none."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return ""
    for line in groups:
        _, controllers, path = line.split(":", 2)
        name = path.rpartition("/")[2]
        if controllers in ("", "name=systemd") and name.endswith(".service"):
            return name
    return ""
