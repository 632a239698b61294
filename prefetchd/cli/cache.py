"""Implements `prefetchd cache`: builds, lists, removes and checks sample caches on disk."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from prefetchd.cli.cache_check import check_rows, count_rows
from prefetchd.cli.options import socket_option
from prefetchd.cli.patience import Patience
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.cache_directory import (
    MARKS,
    CacheDescription,
    allocated_bytes,
    caches_in,
    check_sizes,
    read_description,
)
from prefetchd.wire.cache_marks import is_damage_noted
from prefetchd.wire.cache_removal import remove_cache, remove_leftovers
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.printable import one_line

SHOWN_DIGITS = 12

path_argument = click.argument("path", type=click.Path(file_okay=False, path_type=Path))


@click.group("cache")
def command() -> None:
    """Build, list, remove and check sample caches (docs/sample-cache.md)."""


def _as_json(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    try:
        if isinstance(json.loads(value or "{}"), dict):
            return value or "{}"
    except ValueError:
        pass
    raise click.BadParameter("""no JSON object; allowed: such as '{"root": "/data", "train": true}'""", ctx, param)


@command.command("build")
@click.argument("dataset", metavar="MODULE:FACTORY")
@click.argument("path", type=click.Path(file_okay=False), required=False)
@click.option("--args", metavar="JSON", callback=_as_json, help="The factory's keyword arguments.")
@click.option("--limit", metavar="SIZE", help="Most bytes of samples, as in 40GB. Default: what all of them take.")
@click.option("--fingerprint-extra", metavar="TEXT", help="As of the SampleCache that is to use it.")
@click.option("--trust", is_flag=True, help="Also in a cache that other users have made, or may write to.")
@click.option("--workers", type=click.IntRange(1), help="Default: all that the daemon has.")
@socket_option
def build(
    dataset: str,
    path: str | None,
    args: str,
    limit: str | None,
    fingerprint_extra: str | None,
    trust: bool,
    workers: int | None,
    socket: str | None,
) -> None:
    """Store all samples of a dataset that are missing in its cache below PATH.

    MODULE:FACTORY is called with --args, as for declared streams; modules are found from the current directory. What it
    returns is the dataset to cache, or (without PATH) a SampleCache. A build that was broken off goes on where it was.

    Exit code: 0 all is stored, 1 something is not, 130 interrupted.
    """
    options = {
        "--path": os.path.abspath(path) if path else None,
        "--args": args,
        "--limit": limit,
        "--fingerprint-extra": fingerprint_extra,
        "--workers": workers,
        "--socket": socket,
    }
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    arguments += ["--trust"] if trust else []
    # This process becomes the build: verbs do not import the client.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefetchd_client.sample_cache", dataset, *arguments])


@command.command("ls")
@path_argument
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def ls(path: Path, as_json: bool) -> None:
    """List the caches below PATH: fingerprint, samples stored, bytes on disk, dataset.

    Exit code: 0 done, also when there are none.
    """
    found = [_looked_at(each) for each in caches_in(path)]
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found:
        if each["damage"]:
            click.echo(f"{each['fingerprint']}  damaged: {one_line(each['damage'])}")
            continue
        counts = f"{each['stored']:,} of {each['rows']:,} samples"
        of_dataset = f" ({each['length']:,} in the dataset)" if each["length"] != each["rows"] else ""
        size, dataset = format_bytes(each["bytes"]), one_line(each["dataset"])
        found_damage = "  damage was found: each sample is compared" if each["damage_found"] else ""
        click.echo(f"{each['fingerprint']}  {counts}{of_dataset}  {size}  {dataset}{found_damage}")


@command.command("rm")
@path_argument
@click.argument("fingerprints", nargs=-1, metavar="[FINGERPRINT]...")
@click.option("--all", "everything", is_flag=True, help="All caches below PATH.")
def rm(path: Path, fingerprints: tuple[str, ...], everything: bool) -> None:
    """Remove caches, and what dead processes have left below PATH. A fingerprint's first letters will do.

    Processes that use a cache go on with what they have opened.

    Exit code: 0 done, 1 there is no such cache, or it cannot be removed.
    """
    caches = caches_in(path)
    chosen = caches if everything else [_chosen(caches, each, path) for each in fingerprints]
    if not chosen and not everything:
        raise click.UsageError("name fingerprints (prefetchd cache ls), or --all")
    for each in dict.fromkeys(chosen):
        try:
            remove_cache(each)
        except OSError as error:
            raise click.ClickException(str(error)) from None
        click.echo(one_line(f"removed {each}"))
    remove_leftovers(path)


@command.command("verify")
@path_argument
@click.argument("fingerprints", nargs=-1, metavar="[FINGERPRINT]...")
@click.option("--fix", is_flag=True, help="Forget samples that are not what was stored: they are made again.")
def verify(path: Path, fingerprints: tuple[str, ...], fix: bool) -> None:
    """Read all samples that are stored, and compare each with the digest that was taken when it was.

    Samples that somebody is storing just then are not forgotten: verify once more.

    Exit code: 0 all are as they were, 1 some are not, or have been forgotten (--fix).
    """
    caches = caches_in(path)
    damaged = False
    for each in [_chosen(caches, name, path) for name in fingerprints] or caches:
        try:
            description = read_description(each)
            # First: of a file that was cut that is told, and not that its rows differ.
            check_sizes(each, description)
            bad, forgotten = _checked(each, description, fix=fix)
            stored = count_rows(each, description)
        except (ProtocolError, OSError) as error:
            click.echo(f"{each.name}  damaged: {one_line(str(error))}")
            damaged = True
            continue
        told = "whole"
        if bad:
            told = f"{len(bad)} damaged: {', '.join(map(str, bad[:10]))}{' ...' if len(bad) > 10 else ''}"
        if fix and bad:
            told += f"; {len(forgotten)} forgotten"
        click.echo(f"{each.name}  {stored:,} samples stored  {told}")
        damaged = damaged or bool(bad)
    if damaged:
        sys.exit(1)


def _checked(directory: Path, description: CacheDescription, *, fix: bool) -> tuple[list[int], list[int]]:
    name = directory.name[:SHOWN_DIGITS]
    with Patience("") as patience:
        return check_rows(
            directory,
            description,
            fix=fix,
            looked_at=lambda row: patience.go_on(f"{name}: sample {row:,} of {description.rows:,}"),
        )


def _chosen(caches: list[Path], name: str, path: Path) -> Path:
    found = [each for each in caches if each.name.startswith(name)]
    if len(found) != 1:
        raise click.ClickException(f"{len(found)} caches in {path} begin with {name!r}; see: prefetchd cache ls {path}")
    return found[0]


def _looked_at(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"fingerprint": directory.name, "damage": ""}
    try:
        description: CacheDescription = read_description(directory)
        check_sizes(directory, description)
        stored = count_rows(directory, description)
        size = allocated_bytes(directory, description)
    except (ProtocolError, OSError) as error:
        return found | {"damage": str(error)}
    return found | {
        "dataset": description.dataset,
        "length": description.length,
        "rows": description.rows,
        "stored": stored,
        "damage_found": is_damage_noted((directory / MARKS).stat().st_size, description.rows),
        "sample_bytes": description.sample_bytes,
        "bytes": size,
    }
