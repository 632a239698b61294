"""Hands an operator's settings to the next daemon after a restart in order: paused streams, and the log level.

A daemon that is killed leaves nothing here (decision 0031)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from prefetchd.wire.messages import LOG_LEVELS


@dataclasses.dataclass(frozen=True)
class Held:
    """Settings that a daemon leaves to the next one. `streams` maps the name of each paused stream to True if it was
    drained; `log_level` is empty unless `prefetchd log-level` has changed it."""

    streams: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    log_level: str = ""

    def __bool__(self) -> bool:
        return bool(self.streams or self.log_level)


NOTHING_HELD = Held()


def encode_held(held: Held) -> bytes:
    return json.dumps(dataclasses.asdict(held)).encode()


def decode_held(data: bytes) -> Held:
    """Returns what encode_held() was given; nothing for bytes that it has not made."""
    try:
        raw = json.loads(data)
        streams = {str(name): bool(is_drained) for name, is_drained in raw["streams"].items()}
        level = raw["log_level"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return NOTHING_HELD
    return Held(streams, level if level in LOG_LEVELS else "")
