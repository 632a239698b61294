"""Implements `prefetchd completion`: prints what a shell needs to complete verbs, options and streams."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.runtime_paths import runtime_paths


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete prefetchd's verbs, options and streams.

    \b
    bash:  prefetchd completion bash > ~/.local/share/bash-completion/completions/prefetchd
    zsh:   prefetchd completion zsh > ~/.zfunc/_prefetchd      (with ~/.zfunc in fpath)
    fish:  prefetchd completion fish > ~/.config/fish/completions/prefetchd.fish

    Exit code: 0 printed.
    """
    found = get_completion_class(shell)
    assert found is not None
    root = ctx.find_root()
    click.echo(found(root.command, {}, "prefetchd", "_PREFETCHD_COMPLETE").source())


def stream_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Lists the daemon's streams that begin with `incomplete`, out of its status."""
    try:
        report = read_report(runtime_paths(ctx.params.get("socket")))
    except (PrefetchdError, OSError):
        return []
    streams = report.snapshot["streams"] if report.snapshot is not None else []
    return [CompletionItem(each["name"]) for each in streams if each["name"].startswith(incomplete)]
