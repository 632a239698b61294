"""Implements `prefetchd systemd`: writes and enables the units, and takes them away again."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import click

from prefetchd.cli.installed_units import drop_ins, enabled_instances, is_as_written, marked
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
        text = marked(unit_text(name, program()))
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
    if shutil.which("systemctl") is None:
        raise click.ClickException("the units are written, but there is no systemctl here to enable them with")
    for arguments in (["daemon-reload"], ["enable", "--now", unit]):
        _systemctl([*manager, *arguments], "the units are written")
    click.echo(f"enabled {unit}")
    if user:
        click.echo(f"trainers of {user} need PREFETCHD_SOCKET=/run/prefetchd-{user}/daemon.sock")
    else:
        click.echo(f"to keep it after your last logout: loginctl enable-linger {getpass.getuser()}")


@command.command("uninstall")
@click.option("--system", "user", metavar="USER", help="The system unit for USER instead, prefetchd@USER; needs root.")
def uninstall(user: str | None) -> None:
    """Disable, stop and remove the units that `prefetchd systemd install` has written.

    A unit that was changed since, or that somebody else wrote, is left as it is. So are drop-ins; they are named. The
    system unit's file stays as long as it is enabled, or runs, for other users. Where nothing is installed there is
    nothing to do.

    The daemon is stopped with its unit: its rings are dropped, and trainers that need one start their own.

    Exit code: 0 they are gone, 1 a unit is not as it was written, cannot be removed, or systemctl fails.
    """
    directory = SYSTEM_DIRECTORY if user else user_directory()
    manager = [] if user else ["--user"]
    # The socket goes first: it would start the service again.
    names = (SYSTEM_UNIT,) if user else tuple(reversed(USER_UNITS))
    ours: list[str] = []
    theirs: list[str] = []
    for name in names:
        try:
            (ours if is_as_written(directory / name, unit_text(name, program())) else theirs).append(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise click.ClickException(f"{directory / name} cannot be read: {error.strerror}") from None
    units = [SYSTEM_UNIT.replace("@", f"@{user}")] if user else ours
    if ours:
        _disable(manager, units)
        others = _other_instances(directory, user) if user else []
        if others:
            told = ", ".join(others)
            click.echo(one_line(f"left {directory / SYSTEM_UNIT}: it is also the unit of {told}"))
        else:
            _remove([directory / name for name in ours])
            if shutil.which("systemctl"):
                _systemctl([*manager, "daemon-reload"], "the units are removed")
    elif not theirs:
        click.echo(one_line(f"no unit of prefetchd is installed in {directory}"))
    for path in drop_ins(directory, [*names, *units] if user else names):
        click.echo(one_line(f"left {path}: drop-ins are yours; remove it if you do not need it any more"))
    if theirs:
        paths = " ".join(os.fspath(directory / name) for name in theirs)
        units_left = SYSTEM_UNIT.replace("@", f"@{user}") if user else " ".join(theirs)
        asked = " ".join([*manager, "disable", "--now", units_left])
        raise click.ClickException(
            f"left as they are: {paths}. Somebody has changed what `prefetchd systemd install` wrote there, or has "
            f"written it otherwise. To remove them all the same: systemctl {asked}; rm {paths}"
        )


def _disable(manager: list[str], units: list[str]) -> None:
    if shutil.which("systemctl") is None:
        click.echo("there is no systemctl here: nothing is disabled or stopped")
        return
    _systemctl([*manager, "disable", "--now", *units], "nothing is removed")
    click.echo(f"disabled and stopped {', '.join(units)}")


def _remove(paths: list[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise click.ClickException(f"{path} cannot be removed: {error.strerror}") from None
        click.echo(one_line(f"removed {path}"))


def _other_instances(directory: Path, user: str) -> list[str]:
    """Lists the other users for whom the system unit is enabled or runs."""
    found = enabled_instances(directory, SYSTEM_UNIT)
    if shutil.which("systemctl"):
        listing = ["list-units", "--all", "--plain", "--no-legend", "--state=active", SYSTEM_UNIT.replace("@", "@*")]
        for line in _systemctl(listing, "nothing is removed").splitlines():
            found.add(line.split()[0].removeprefix("prefetchd@").removesuffix(".service"))
    return sorted(found - {user})


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


def _systemctl(arguments: list[str], done_so_far: str) -> str:
    """Returns what systemctl prints. Raises ClickException, which begins with what is `done_so_far`."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{done_so_far}, but `systemctl {' '.join(arguments)}` fails: {done.stderr.strip()}")
    return done.stdout
