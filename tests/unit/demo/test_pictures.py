"""The demo's pictures: the same bytes for the same number, whole or not at all, written once."""

from __future__ import annotations

import hashlib

import pytest
from PIL import Image
from prefetchd_demo import pictures

from prefetchd.wire.errors import RemoteError


def test_they_are_jpegs_of_ten_classes_and_the_same_each_time(tmp_path):
    made = []
    for place in ("first", "second"):
        directory = _cached(tmp_path / place, 20, threads=1 + len(made))
        made.append({path.relative_to(directory): _digest(path) for path in directory.rglob("*.jpg")})
    assert made[0] == made[1]
    assert len(set(made[0].values())) == 20
    assert {path.parent.name for path in made[0]} == set(pictures.PHOTOGRAPHS)
    with Image.open(next(directory.rglob("*.jpg"))) as picture:
        assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (500, 375))


def test_they_are_written_once(tmp_path):
    told = []
    _cached(tmp_path, 12, lambda _, so_far: told.append(so_far))
    assert told == list(range(13))
    directory = _cached(tmp_path, 12, lambda _, so_far: told.append("again"))
    assert told == list(range(13))
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


def test_what_an_interrupted_run_left_is_replaced(tmp_path):
    directory = _cached(tmp_path, 10)
    next(directory.rglob("*.jpg")).unlink()
    unfinished = directory.with_name(directory.name + ".unfinished")
    unfinished.mkdir()
    (unfinished / "left").touch()
    assert len(list(_cached(tmp_path, 10).rglob("*.jpg"))) == 10
    assert not unfinished.exists()


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupt(_, so_far):
        if so_far == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _cached(tmp_path, 10, interrupt)
    assert not list((tmp_path / "prefetchd" / "demo").iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RemoteError, match=r"file/prefetchd/demo.*XDG_CACHE_HOME"):
        _cached(tmp_path / "file", 10)


def _cached(cache, count, written=lambda *_: None, threads=2):
    return pictures.cached_pictures(count, threads, written, {"XDG_CACHE_HOME": str(cache)})


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
