"""Implements the command `prefetchd` and its verbs, each loaded only when it is asked for."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys

import click

from prefetchd import __version__
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.printable import printable

CANNOT_WRITE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
"""Errors of a write to stdout; a command names its own files."""

VERBS = {
    "run": "Run the daemon.",
    "status": "Show what the daemon is doing.",
    "dashboard": "Serve a live page of it.",
    "report": "Write the last hour into one file.",
    "advise": "Say what other numbers would bring.",
    "config": "Check a configuration file.",
    "warm": "Return when the streams of a configuration are filled.",
    "reload": "Have the daemon take a configuration on.",
    "stop": "Stop the daemon.",
    "restart": "Start another daemon in its place, with its rings.",
    "pause": "Stop filling streams.",
    "resume": "Fill them again.",
    "drain": "Stop filling streams and end their processes.",
    "evict": "Drop a stream and free its memory.",
    "log-level": "Change what the daemon logs.",
    "trace": "Record what workers and trainers do, for Perfetto.",
    "cache": "Build, list, remove and check sample caches.",
    "doctor": "Check this machine, and what was left behind.",
    "systemd": "Run the daemon under systemd.",
    "logs": "Show the daemon's log.",
    "docs": "Print a page of the documentation.",
    "completion": "Print what makes a shell complete all this.",
    "demo": "Train a small network through the daemon and through DataLoader, side by side.",
}


class _Verbs(click.Group):
    """Loads verbs by name; `prefetchd --help` needs none of their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"prefetchd.cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and (near := difflib.get_close_matches(args[0], VERBS, n=1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="prefetchd")
def cli() -> None:
    """A data-loading daemon for PyTorch: ready batches in shared memory that outlive the trainer.

    No daemon has to be started: the first loader starts one. `prefetchd VERB --help` tells all of a verb, its exit
    codes included; in general 0 is done, 1 failed, 2 wrong usage, 130 interrupted. NO_COLOR turns colours off.
    """


def main() -> None:
    """Runs the command. Exit codes: 0 done, 1 failed, 2 wrong usage; `status` has its own."""
    try:
        # What ctx.exit() was given, or None.
        sys.exit(cli(prog_name="prefetchd", standalone_mode=False))
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        # What show() writes may have names in it that are somebody else's.
        said = io.StringIO()
        error.show(said)
        click.echo(printable(said.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except PrefetchdError as error:
        click.echo(f"prefetchd: {printable(str(error))}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        # A full disk, or nobody who reads it; the interpreter would try once more.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end
        if error.errno != errno.EPIPE:
            click.echo(f"prefetchd: what it has to say cannot be written: {error.strerror}", err=True)
        sys.exit(1)
