"""Records how a daemon was started, so that the next one on its socket can be started the same way.

A trainer that finds its daemon dead starts another one, and knows no option of the dead one. The record is a file
beside the socket that only its owner can read: it may hold a cluster's token. The rules:

1. A daemon writes it as it starts, with the options that were chosen, the configuration file, and the variables by
   which Ray's cluster is reached. A daemon with nothing to record removes what it finds.
2. A daemon that is stopped, or ends as nothing uses it, removes it, and so does `prefetchd stop` where the daemon is
   dead. A daemon that is killed, that fails, or that leaves rings or settings to the next daemon, leaves it.
3. Only a daemon that a trainer starts reads it. `prefetchd run` says by itself how a daemon starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefetchd.wire.cluster_address import CLUSTER_VARIABLES
from prefetchd.wire.errors import UntrustedPathError
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.trusted_paths import open_file

USUAL = {"idle_exit": 900.0, "reset_affinity": True}
"""The options of a daemon that a trainer starts anyway."""
LIMIT_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class StartRecord:
    """The `options` of `prefetchd run` by name, the path of the configuration file (empty: none), and variables."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config: str = ""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_usual(self) -> bool:
        """True when a trainer would start such a daemon without a record."""
        return not self.config and dict(self.options) == USUAL


def record_of(options: Mapping[str, Any], config: Path | None, ray: str, environ: Mapping[str, str]) -> StartRecord:
    """Return the record of a daemon. Variables count where there is an address of a cluster in `ray`."""
    chosen = dict(options) | ({"ray": ray} if ray else {})
    variables = {name: value for name, value in environ.items() if ray and name.startswith(CLUSTER_VARIABLES)}
    return StartRecord(chosen, str(config or ""), variables)


def write_record(paths: RuntimePaths, record: StartRecord) -> None:
    """Write the record, or remove a former one where there is nothing to record. Blocks. Raises OSError."""
    if record.is_usual:
        remove_record(paths)
        return
    beside = paths.start_record.with_name(f"{paths.start_record.name}.{os.getpid()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(dataclasses.asdict(record), file, ensure_ascii=False)
        os.rename(beside, paths.start_record)
    except BaseException:
        os.unlink(beside)
        raise


def read_record(paths: RuntimePaths) -> StartRecord | None:
    """Return the record of the last daemon on the socket; None where there is none, or another user may have written
    it."""
    try:
        fd = open_file(paths.start_record)
    except (OSError, UntrustedPathError):
        return None
    with os.fdopen(fd, encoding="utf-8", errors="surrogateescape") as file:
        try:
            raw = json.loads(file.read(LIMIT_BYTES))
            variables = {str(name): str(value) for name, value in raw["variables"].items()}
            return StartRecord(dict(raw["options"]), str(raw["config"]), variables)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Return options of `prefetchd run`, by name, as they are typed."""
    arguments = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        else:
            arguments += [f"--{option}", str(value)]
    return arguments


def remove_record(paths: RuntimePaths) -> None:
    """Remove the record, if there is one."""
    with contextlib.suppress(OSError):
        os.unlink(paths.start_record)
