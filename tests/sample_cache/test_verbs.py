"""prefetchd cache build, ls, rm and verify."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from prefetchd_client import PrefetchLoader, SampleCache

from prefetchd.cli import cache
from prefetchd.cli.cache import command
from tests.sample_cache.cached_datasets import LENGTH, Plain

pytest.importorskip("tensordict")
DOC = Path(__file__).resolve().parents[2] / "docs" / "sample-cache.md"
FACTORY = "tests.sample_cache.cached_datasets:make_plain"


def build(daemon, tmp_path, *more, factory=FACTORY, check=True, **arguments):
    given = json.dumps({"calls": str(tmp_path / "calls"), **arguments})
    return daemon.command("cache", "build", factory, *more, "--args", given, check=check)


def listed(daemon, path):
    return json.loads(daemon.command("cache", "ls", str(path), "--json").stdout)


def test_what_the_command_has_built_a_trainer_finds(daemon, tmp_path):
    path = tmp_path / "cache"
    done = build(daemon, tmp_path, str(path))
    assert f"stored {LENGTH} samples, {LENGTH} in all" in done.stdout
    dataset = Plain(str(tmp_path / "calls"))
    cache = SampleCache(dataset, path)
    before = len(dataset.made())
    with PrefetchLoader(cache, batch_size=8) as loader:
        assert sum(len(labels) for _, labels in loader) == LENGTH
    assert len(dataset.made()) == before
    (found,) = listed(daemon, path)
    assert found["fingerprint"] == cache.fingerprint
    assert found["stored"] == found["rows"] == found["length"] == LENGTH
    assert found["sample_bytes"] == 3 * 64 * 64 * 4 + 8
    assert found["bytes"] >= LENGTH * found["sample_bytes"]
    documented = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", DOC.read_text("utf-8"), re.M))
    assert {key: type(value).__name__ for key, value in found.items()} == documented
    assert "0 samples" in build(daemon, tmp_path, str(path)).stdout


def test_a_factory_that_makes_the_cache_itself(daemon, tmp_path):
    path = str(tmp_path / "cache")
    factory = "tests.sample_cache.cached_datasets:make_cache"
    assert f"stored {LENGTH}" in build(daemon, tmp_path, factory=factory, path=path).stdout
    refused = build(daemon, tmp_path, path, factory=factory, check=False, path=path)
    assert refused.returncode == 1
    assert "has its path" in refused.stderr


def test_a_limit_leaves_samples_out(daemon, tmp_path):
    path = tmp_path / "cache"
    done = build(daemon, tmp_path, str(path), "--limit", "500KB")
    rows = 500_000 // (3 * 64 * 64 * 4 + 8)
    assert f"stored {rows} samples" in done.stdout
    assert f"{LENGTH - rows} have no place" in done.stdout
    cache = SampleCache(Plain(str(tmp_path / "calls")), path)
    assert cache[LENGTH - 1][1] == LENGTH - 1
    assert cache.missing() == []
    assert listed(daemon, path)[0]["bytes"] <= 500_000 + 2 * 4096


def test_damage_is_found_and_forgotten(daemon, tmp_path):
    path = tmp_path / "cache"
    build(daemon, tmp_path, str(path))
    cache = SampleCache(Plain(str(tmp_path / "calls")), path)
    file = cache.samples / "0.memmap"
    with open(file, "r+b") as opened:
        opened.seek(5 * 3 * 64 * 64 * 4 + 17)
        opened.write(b"\xff")
    done = daemon.command("cache", "verify", str(path), check=False)
    assert done.returncode == 1
    assert "1 damaged: 5" in done.stdout
    assert daemon.command("cache", "verify", str(path), "--fix", check=False).returncode == 1
    assert daemon.command("cache", "verify", str(path), cache.fingerprint[:8]).stdout.count("whole") == 1
    assert cache.missing() == [5]
    assert torch.equal(cache[5][0], cache.dataset[5][0])
    assert cache.missing() == []
    file.write_bytes(b"short")
    assert "damaged" in daemon.command("cache", "ls", str(path)).stdout
    (found,) = listed(daemon, path)
    assert found.keys() == {"fingerprint", "damage"}
    assert "0.memmap" in found["damage"]
    assert daemon.command("cache", "verify", str(path), check=False).returncode == 1


def test_caches_are_removed_by_name_and_nothing_else(daemon, tmp_path):
    path = tmp_path / "cache"
    for length in (10, 20):
        build(daemon, tmp_path, str(path), length=length)
    (path / "mine").mkdir()
    leftover = path / f"{'0' * 32}.new-1-2"
    leftover.mkdir()
    first, second = (each["fingerprint"] for each in listed(daemon, path))
    assert daemon.command("cache", "rm", str(path), check=False).returncode == 2
    assert daemon.command("cache", "rm", str(path), "", check=False).returncode == 1
    daemon.command("cache", "rm", str(path), first[:12])
    assert [each["fingerprint"] for each in listed(daemon, path)] == [second]
    assert not leftover.exists()
    daemon.command("cache", "rm", str(path), "--all")
    assert [each.name for each in path.iterdir()] == ["mine"]


def test_a_long_look_shows_how_far_it_is(tmp_path, monkeypatch):
    cache_of_some = SampleCache(Plain(str(tmp_path / "calls")), tmp_path / "cache")
    for index in (0, 3, 5):
        cache_of_some.store(index)
    shown = []
    monkeypatch.setattr(cache.Patience, "go_on", lambda self, what: shown.append(what))
    assert CliRunner().invoke(command, ["verify", str(tmp_path / "cache")]).exit_code == 0
    name = cache_of_some.fingerprint[:12]
    assert shown == [f"{name}: sample {row} of {LENGTH}" for row in (0, 3, 5)]


def test_what_is_wrong_with_the_arguments(daemon, tmp_path):
    assert "no JSON object" in daemon.command("cache", "build", FACTORY, "--args", "[1]", check=False).stderr
    assert daemon.command("cache", "build", "no.such:module", str(tmp_path), check=False).returncode == 1
    assert command.name == "cache"
