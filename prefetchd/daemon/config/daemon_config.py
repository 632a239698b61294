"""Validates the daemon's configuration: a TOML text, as a whole, into plain data. Pure: it reads no file and imports
nothing of what the text names.

Every error says where it is, what was found and what is allowed; all of them are told at once.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from prefetchd.daemon.config.config_values import (
    UNSET,
    Checked,
    as_bool,
    as_choice,
    as_entry_point,
    as_number,
    as_path,
    as_size,
    as_table,
    as_text,
    as_whole,
    is_plain,
)
from prefetchd.daemon.config.toml_lines import line_numbers, line_of
from prefetchd.wire.batch_file import EPOCHS_LIMIT
from prefetchd.wire.errors import CallerError
from prefetchd.wire.stream_spec import MINIMUM_SLOTS, ON_ERROR, SEED_LIMIT

DEFAULT_POLL_S = 0.25


class ConfigError(CallerError):
    """The configuration cannot be used; `problems` has a line for each thing that is wrong with it."""

    code = "config"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True)
class DaemonConfig:
    """The table [daemon]; None leaves it to the command line, or to the daemon. Durations in seconds."""

    workers: int | None = None
    autotune: bool | None = None
    memory_bytes: int | None = None
    worker_memory_bytes: int | None = None
    nice: int | None = None
    linger_s: float | None = None
    linger_clean_s: float | None = None
    idle_exit_s: float | None = None
    linger_bytes: int | None = None
    ray: str | None = None
    ray_insecure: bool | None = None
    history: str | None = None


@dataclasses.dataclass(frozen=True)
class StreamConfig:
    """One table [streams.NAME].

    dataset, collate_fn, worker_init_fn     "module:name", imported where the stream's workers run
    dataset_args    keyword arguments of the dataset's factory
    python, cwd     interpreter and directory of its processes; empty means the daemon's, and that of the file
    env             variables beside the daemon's own
    buffer_bytes, buffer_batches, low_watermark, high_watermark     as in StreamSpec
    store           "shm", "ram_disk" or "files"; the latter two in `directory`
    progress_file   who consumes says in this file where it is; empty: through the socket
    poll_s          how often the file is looked at where nobody tells of its changes
    epochs          so many are made, and none after; 0 means no end
    """

    name: str
    dataset: str
    dataset_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    collate_fn: str = ""
    worker_init_fn: str = ""
    python: str = ""
    cwd: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    on_error: str = "raise"
    fingerprint_extra: str = ""
    buffer_bytes: int = 0
    buffer_batches: int = 0
    low_watermark: int = 0
    high_watermark: int = 0
    lookback: int = 0
    workers: int = 0
    remote_workers: int = 0
    timeout_s: float = 0.0
    epochs: int = 0
    store: str = "shm"
    directory: str = ""
    progress_file: str = ""
    poll_s: float = DEFAULT_POLL_S


@dataclasses.dataclass(frozen=True)
class Config:
    """The whole configuration. `streams` are in the order of the file."""

    daemon: DaemonConfig = DaemonConfig()
    streams: tuple[StreamConfig, ...] = ()

    def stream(self, name: str) -> StreamConfig | None:
        return next((each for each in self.streams if each.name == name), None)

    @property
    def ram_disks(self) -> tuple[str, ...]:
        """The directories in which streams keep their rings."""
        return tuple(sorted({each.directory for each in self.streams if each.store == "ram_disk"}))


NO_CONFIG = Config()

SETTINGS = {
    "workers": "workers",
    "autotune": "autotune",
    "memory_bytes": "memory",
    "worker_memory_bytes": "worker_memory",
    "nice": "nice",
    "linger_s": "linger",
    "linger_clean_s": "linger_clean",
    "idle_exit_s": "idle_exit",
    "linger_bytes": "linger_memory",
    "ray": "ray",
    "ray_insecure": "ray_insecure",
    "history": "history",
}
"""The names in [daemon] of DaemonConfig's fields."""


def changed_settings(before: DaemonConfig, after: DaemonConfig) -> list[str]:
    """Lists the names of settings that differ."""
    return [name for field, name in SETTINGS.items() if getattr(before, field) != getattr(after, field)]


DAEMON_KEYS = {
    "workers": as_whole(1, 1 << 16),
    "autotune": as_bool,
    "memory": as_size,
    "worker_memory": as_size,
    "nice": as_whole(0, 19),
    "linger": as_number(0),
    "linger_clean": as_number(0),
    "linger_memory": as_size,
    "idle_exit": as_number(0),
    "ray": as_text,
    "ray_insecure": as_bool,
    "history": as_path,
}
_DAEMON_FIELDS = {
    "memory": "memory_bytes",
    "worker_memory": "worker_memory_bytes",
    "linger": "linger_s",
    "linger_clean": "linger_clean_s",
    "linger_memory": "linger_bytes",
    "idle_exit": "idle_exit_s",
}
STREAM_KEYS = {
    "dataset": as_entry_point,
    "dataset_args": as_table,
    "collate_fn": as_entry_point,
    "worker_init_fn": as_entry_point,
    "python": as_path,
    "cwd": as_path,
    "env": as_table,
    "batch_size": as_whole(0, 1 << 31),
    "shuffle": as_bool,
    "drop_last": as_bool,
    "seed": as_whole(0, SEED_LIMIT - 1),
    "rank": as_whole(0, 1 << 31),
    "world_size": as_whole(1, 1 << 31),
    "on_error": as_choice(*ON_ERROR),
    "fingerprint_extra": as_text,
    "low_watermark": as_whole(1, 1 << 31),
    "high_watermark": as_whole(1, 1 << 31),
    "lookback": as_whole(0, 1 << 31),
    "workers": as_whole(0, 1 << 16),
    "remote_workers": as_whole(0, 1 << 16),
    "timeout": as_number(0),
    "epochs": as_whole(0, EPOCHS_LIMIT),
}
OTHER_STREAM_KEYS = ("buffer", "store", "progress")


def parse_config(text: str, file: str = "<config>", directory: str = "") -> Config:
    """Returns the configuration in `text`, which was read from `file`; relative paths are taken from `directory`.
    Raises ConfigError with everything that is wrong."""
    # Imported here: a daemon without a configuration starts without it.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file}: not TOML: {error}"]) from None
    checked = Checked(file, directory, lambda path: line_of(path, lines))
    lines = line_numbers(text)
    checked.only(raw, (), ("daemon", "streams"))
    daemon = checked.table(raw, "daemon")
    streams = checked.table(raw, "streams")
    config = Config(_daemon(checked, daemon), tuple(_stream(checked, name, streams[name]) for name in streams))
    _check_directories(checked, config)
    if checked.problems:
        raise ConfigError(checked.problems)
    return config


def _daemon(checked: Checked, raw: Mapping[str, Any]) -> DaemonConfig:
    path = ("daemon",)
    checked.only(raw, path, tuple(DAEMON_KEYS))
    found = {_DAEMON_FIELDS.get(key, key): checked.value(raw, path, key, check) for key, check in DAEMON_KEYS.items()}
    return DaemonConfig(**{field: value for field, value in found.items() if value is not UNSET})


def _stream(checked: Checked, name: str, raw: Any) -> StreamConfig:
    path = ("streams", name)
    if not isinstance(raw, dict):
        checked.wrong(path, raw, "a table, [streams.NAME]")
        return StreamConfig(name, "")
    if not 0 < len(name) <= 200 or not name.isprintable():
        checked.wrong(path, name, "a name of 1 to 200 printable characters")
    checked.only(raw, path, (*STREAM_KEYS, *OTHER_STREAM_KEYS))
    if "dataset" not in raw:
        checked.wrong((*path, "dataset"), None, 'a factory, as in "my_module:make_dataset"')
    found = {key: checked.value(raw, path, key, check) for key, check in STREAM_KEYS.items()}
    found["timeout_s"] = found.pop("timeout")
    found |= _buffer(checked, raw, path) | _store(checked, raw, path) | _progress(checked, raw, path)
    _check_arguments(checked, {} if found["dataset_args"] is UNSET else found["dataset_args"], path)
    _check_env(checked, {} if found["env"] is UNSET else found["env"], path)
    stream = StreamConfig(name, **{"dataset": "", **{key: each for key, each in found.items() if each is not UNSET}})
    if stream.rank >= stream.world_size:
        checked.wrong((*path, "rank"), stream.rank, f"0 to world_size - 1, which is {stream.world_size - 1}")
    if stream.lookback and stream.store == "files":
        checked.wrong((*path, "lookback"), stream.lookback, "0: files are made again for who goes back")
    _check_watermarks(checked, stream, path)
    return stream


def _buffer(checked: Checked, raw: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Reads `buffer`: a number of batches, or bytes as a text."""
    value = raw.get("buffer", UNSET)
    if isinstance(value, str):
        return {"buffer_bytes": checked.value(raw, path, "buffer", as_size)}
    return {"buffer_batches": checked.value(raw, path, "buffer", as_whole(MINIMUM_SLOTS, 65_536, "or a size, '30GB'"))}


def _store(checked: Checked, raw: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    value = raw.get("store", "shm")
    if value == "shm":
        return {}
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("ram_disk", "files"):
        ((kind, _),) = value.items()
        return {"store": kind, "directory": checked.value(value, (*path, "store"), kind, as_path)}
    checked.wrong((*path, "store"), value, '"shm", {ram_disk = DIRECTORY} or {files = DIRECTORY}')
    return {}


def _progress(checked: Checked, raw: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    value = raw.get("progress", "socket")
    if value == "socket":
        return {}
    if isinstance(value, dict) and "file" in value and set(value) <= {"file", "poll"}:
        inside = (*path, "progress")
        return {
            "progress_file": checked.value(value, inside, "file", as_path),
            "poll_s": checked.value(value, inside, "poll", as_number(0.01)),
        }
    checked.wrong((*path, "progress"), value, '"socket", {file = PATH} or {file = PATH, poll = SECONDS}')
    return {}


def _check_arguments(checked: Checked, arguments: dict[str, Any], path: tuple[str, ...]) -> None:
    for name, value in arguments.items():
        if not is_plain(value):
            plain = "texts, numbers, booleans, lists and tables"
            checked.wrong((*path, "dataset_args", name), value, plain)


def _check_env(checked: Checked, env: dict[str, Any], path: tuple[str, ...]) -> None:
    for allowed, is_wrong in (
        ("names of variables", lambda name: not name or "=" in name or "\0" in name),
        ("values in quotes", lambda name: not isinstance(env[name], str)),
        ("values without a zero byte", lambda name: "\0" in str(env[name])),
    ):
        if wrong := sorted(filter(is_wrong, env)):
            # The names only: the values may be secret.
            checked.wrong((*path, "env"), wrong, allowed)


def _check_watermarks(checked: Checked, stream: StreamConfig, path: tuple[str, ...]) -> None:
    low, high = stream.low_watermark, stream.high_watermark
    if bool(low) != bool(high):
        key = "high_watermark" if low else "low_watermark"
        checked.wrong((*path, key), None, "low_watermark and high_watermark, or neither")
    elif low and low >= high:
        checked.wrong((*path, "low_watermark"), low, f"less than high_watermark, which is {high}")
    if stream.buffer_batches and high > stream.buffer_batches:
        checked.wrong((*path, "high_watermark"), high, f"up to buffer, which is {stream.buffer_batches}")


def _check_directories(checked: Checked, config: Config) -> None:
    """Reports a directory that two streams have: their batches could not be told apart by whoever looks for the next
    one."""
    owners: dict[str, str] = {}
    for stream in config.streams:
        if stream.store == "files" and stream.directory:
            other = owners.setdefault(stream.directory, stream.name)
            if other != stream.name:
                path = ("streams", stream.name, "store")
                checked.wrong(path, stream.directory, f"a directory of its own; stream {other!r} has that one")
