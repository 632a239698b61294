"""Implements `prefetchd systemd`: writes and enables the units."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import click

from prefetchd.wire.printable import one_line

USER_UNITS = ("prefetchd.service", "prefetchd.socket")
SYSTEM_UNIT = "prefetchd@.service"
SYSTEM_DIRECTORY = Path("/etc/systemd/system")
PLACEHOLDERS = ("%h/.local/bin/prefetchd", "/usr/local/bin/prefetchd")


@click.group("systemd")
def command() -> None:
    """Run the daemon under systemd (systemd/README.md has more)."""


@command.command("install")
@click.option("--socket-activation", is_flag=True, help="Start the daemon when the first trainer comes, not at login.")
@click.option("--system", "user", metavar="USER", help="A system unit for USER instead, prefetchd@USER; needs root.")
@click.option("--no-start", is_flag=True, help="Write the units, and enable nothing.")
@click.option("--print", "only_print", is_flag=True, help="Print what would be written, and write nothing.")
def install(socket_activation: bool, user: str | None, no_start: bool, only_print: bool) -> None:
    """Write units that run this prefetchd, and enable and start them.

    By default these are units of yours, in $XDG_CONFIG_HOME/systemd/user: the daemon starts at your login. Stop the
    daemon that a trainer may have started before: `prefetchd stop`.

    Exit code: 0 done, 1 a unit cannot be written or systemctl fails.
    """
    if user and socket_activation:
        raise click.UsageError(
            "--system and --socket-activation exclude each other: systemd would listen as root, and trainers trust "
            "only a daemon of their own user"
        )
    names = (SYSTEM_UNIT,) if user else USER_UNITS
    directory = SYSTEM_DIRECTORY if user else user_directory()
    for name in names:
        text = unit_text(name, program())
        if only_print:
            click.echo(f"# {directory / name}\n{text}")
            continue
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, "utf-8")
        except OSError as error:
            raise click.ClickException(f"{directory / name} cannot be written: {error.strerror}") from None
        click.echo(one_line(f"wrote {directory / name}"))
    if only_print:
        return
    manager = [] if user else ["--user"]
    unit = SYSTEM_UNIT.replace("@", f"@{user}") if user else USER_UNITS[socket_activation]
    if no_start:
        click.echo(f"enable it with: systemctl {' '.join([*manager, 'enable', '--now', unit])}")
        return
    for arguments in (["daemon-reload"], ["enable", "--now", unit]):
        _systemctl([*manager, *arguments])
    click.echo(f"enabled {unit}")
    if user:
        click.echo(f"trainers of {user} need PREFETCHD_SOCKET=/run/prefetchd-{user}/daemon.sock")
    else:
        click.echo(f"to keep it after your last logout: loginctl enable-linger {getpass.getuser()}")


def unit_text(name: str, path: str) -> str:
    """Returns the unit, with `path` as the command in the place of the placeholder."""
    text = files("prefetchd.units").joinpath(name).read_text("utf-8")
    for placeholder in PLACEHOLDERS:
        for key in ("ExecStart", "ExecReload"):
            text = text.replace(f"{key}={placeholder}", f"{key}={path}")
    return text


def program() -> str:
    """Returns this very command, as systemd can run it."""
    beside = Path(sys.executable).with_name("prefetchd")
    if os.access(beside, os.X_OK):
        return os.fspath(beside)
    return f"{sys.executable} -m prefetchd"


def user_directory() -> Path:
    """Returns the directory of a user's own units."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _systemctl(arguments: list[str]) -> None:
    if shutil.which("systemctl") is None:
        raise click.ClickException("the units are written, but there is no systemctl here to enable them with")
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(
            f"the units are written, but `systemctl {' '.join(arguments)}` fails: {done.stderr.strip()}"
        )
