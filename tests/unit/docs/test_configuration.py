"""The annotated configuration of the docs is one, and has every key."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from prefetchd.cli import detached, run
from prefetchd.daemon.config.daemon_config import (
    DAEMON_KEYS,
    OTHER_STREAM_KEYS,
    STREAM_KEYS,
    DaemonConfig,
    parse_config,
)
from tests.unit.docs.draw import DOCS


def blocks(page: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)


def test_the_annotated_example_is_valid_and_has_every_key():
    (text,) = blocks("configuration.md")
    config = parse_config(text, "docs/configuration.md", "/srv")
    assert [stream.name for stream in config.streams] == ["train", "validation"]
    for key in (*DAEMON_KEYS, *STREAM_KEYS, *OTHER_STREAM_KEYS):
        assert re.search(rf"^{key} = ", text, re.M), key


def test_the_example_at_full_scale_is_valid():
    (text,) = blocks("batch-files.md")
    (stream,) = parse_config(text).streams
    assert (stream.buffer_bytes, stream.low_watermark, stream.high_watermark) == (30 * 10**9, 800, 1000)
    assert stream.store == "files"


@pytest.mark.parametrize("starts", [run, detached], ids=lambda module: module.__name__)
def test_every_key_of_the_daemon_is_heeded_however_it_is_started(starts):
    used = set(re.findall(r"\bsettings\.(\w+)", inspect.getsource(starts)))
    assert used == {field.name for field in dataclasses.fields(DaemonConfig)}
