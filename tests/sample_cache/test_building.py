"""How samples get into a cache: by which workers, with what on the screen, and with others at it at the same time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from prefetchd_client import SampleCache

from prefetchd.wire.cache_directory import MARKS, ROW_LOCK_OFFSET
from prefetchd.wire.errors import RemoteError
from prefetchd.wire.file_locks import try_lock
from prefetchd.wire.framing import close_all
from tests.sample_cache.cached_datasets import LENGTH, Plain, Signed
from tests.scenario.forked import forked, told_by
from tests.scenario.test_status import on_a_terminal, shown_until

pytest.importorskip("tensordict")
FACTORY = "tests.sample_cache.cached_datasets:make_signed"
LONGER = 400


def arguments(tmp_path, *more, length=LENGTH):
    given = json.dumps({"calls": str(tmp_path / "calls"), "length": length})
    return ("cache", "build", FACTORY, str(tmp_path / "cache"), "--args", given, *more)


def test_a_terminal_shows_how_far_it_is(daemon, tmp_path):
    with on_a_terminal(daemon, *arguments(tmp_path, length=LONGER), size=(40, 100)) as (process, ours):
        shown = shown_until(ours, f"stored {LONGER} samples")
        assert process.wait(60) == 0
    # The first sample is stored before: it tells how all look.
    counts = [int(count) for count in re.findall(rf"storing samples [^\r]* (\d+)/{LONGER - 1}\b", shown)]
    assert len(set(counts)) > 2
    assert counts == sorted(counts)
    assert counts[-1] == LONGER - 1


@pytest.mark.parametrize(("asked", "workers"), [((), 2), (("--workers", "1"), 1)])
def test_all_workers_build_or_so_many_as_are_asked_for(daemon, tmp_path, asked, workers):
    daemon.start("--workers", "2")
    daemon.command(*arguments(tmp_path, *asked, length=LONGER))
    # The builder itself makes the first.
    _, *makers = Signed(tmp_path / "calls").makers.read_text().split()
    # Where the marks' lock was not to be had in time, one is made twice.
    assert LONGER - 1 <= len(makers) < LONGER + 10
    assert len(set(makers)) == workers


def test_a_fingerprint_extra_makes_another_version(daemon, tmp_path):
    done = daemon.command(*arguments(tmp_path, "--fingerprint-extra", "scans of May"))
    assert done.stderr == "", "there is no bar where no terminal looks"
    dataset = Signed(tmp_path / "calls")
    assert SampleCache(dataset, tmp_path / "cache", fingerprint_extra="scans of May").missing() == []
    assert len(SampleCache(dataset, tmp_path / "cache", fingerprint_extra="scans of June").missing()) == LENGTH
    assert len(SampleCache(dataset, tmp_path / "cache").missing()) == LENGTH


def test_two_that_build_the_same_cache_at_the_same_time_both_end_well(daemon, tmp_path):
    daemon.start("--workers", "2")
    command = [sys.executable, "-m", "prefetchd", *arguments(tmp_path, length=LONGER)]
    both = [
        subprocess.Popen(command, env=daemon.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for building in both:
        said, complaint = building.communicate(timeout=100)
        assert building.returncode == 0, complaint
        assert f"{LONGER} in all" in said
    cache = SampleCache(Signed(tmp_path / "calls", LONGER), tmp_path / "cache")
    assert cache.missing() == []
    oracle = Plain(tmp_path / "oracle", LONGER)
    for index in range(0, LONGER, 17):
        assert torch.equal(cache[index][0], oracle[index][0])


def test_what_another_process_is_storing_is_left_to_it_and_told(daemon, tmp_path):
    cache = SampleCache(Plain(tmp_path / "calls"), tmp_path / "cache")
    cache.store(0)
    has_lock, locked = os.pipe()
    let_go, go = os.pipe()

    def stores() -> None:
        assert try_lock(os.open(cache.directory / MARKS, os.O_RDWR), ROW_LOCK_OFFSET + 7)
        os.write(locked, b"x")
        os.read(let_go, 1)

    child = forked(stores)
    os.read(has_lock, 1)
    with pytest.raises(RemoteError, match="1 samples are still being stored by other processes"):
        cache.build(progress=False)
    assert cache.missing() == [7]
    assert cache[7][1] == 7
    os.write(go, b"x")
    told_by(child)
    close_all([has_lock, locked, let_go, go])
    # Unless a worker that was ahead has stored it by now.
    assert cache.build(progress=False) <= 1
    assert cache.missing() == []


SOURCE = """
import torch

def brightened(image):
    return image + {added}

class Images:
    def __init__(self):
        self.transform = brightened

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.transform(torch.full((4,), index))
"""
READ = """
import mine
from prefetchd_client import SampleCache
print([int(SampleCache(mine.Images(), 'cache')[3][0]) for _ in 'ab'])
"""


@pytest.mark.slow
def test_an_edited_transform_reads_no_old_samples_in_the_next_process(tmp_path):
    for added in (10, 20):
        (tmp_path / "mine.py").write_text(SOURCE.format(added=added))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            [sys.executable, "-Bc", READ], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.stdout == f"{[3 + added] * 2}\n", done.stderr
    assert len(list((tmp_path / "cache").iterdir())) == 2
