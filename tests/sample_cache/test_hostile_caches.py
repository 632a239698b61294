"""Sample caches that somebody else has made or changed: all that they say is looked at before anything is mapped."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings

import pytest
import torch
from click.testing import CliRunner
from prefetchd_client import SampleCache
from prefetchd_client.sample_cache.store import CHECKED_EVERY

from prefetchd.cli.cache import command
from prefetchd.wire.cache_directory import DESCRIPTION, MARKS, SAMPLES
from prefetchd.wire.errors import CallerError, PrefetchdError, ProtocolError, UntrustedPathError
from tests.attacks.another_user import NOBODY, as_nobody, as_root
from tests.scenario.forked import forked, told_by

pytest.importorskip("tensordict")

ROWS = 200


class Rows(torch.utils.data.Dataset):
    """Sample i is a row of i, its number and a deeper one."""

    def __init__(self, width=4):
        self.width = width

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"row": torch.full((self.width,), float(index)), "more": {"number": index}}


def filled(path, width=4):
    cache = SampleCache(Rows(width), path)
    for index in range(ROWS):
        cache.store(index)
    cache.close()
    return cache


@pytest.fixture
def cache(tmp_path):
    return filled(tmp_path / "caches")


def changed(cache, change):
    path = cache.directory / DESCRIPTION
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    return SampleCache(cache.dataset, cache.path)


def first_leaf(**values):
    return lambda said: said["leaves"][0].update(values)


def first_node(**values):
    def change(said):
        for key, value in values.items():
            said["structure"][key] = value

    return change


HOSTILE = {
    "rows that are longer than their type": first_leaf(row_bytes=1 << 20),
    "rows that are shorter": first_leaf(row_bytes=1),
    "rows of no bytes": first_leaf(row_bytes=0),
    "a negative row": first_leaf(row_bytes=-16),
    "a shape that is larger": first_leaf(shape=[1 << 20]),
    "a negative shape": first_leaf(shape=[-4]),
    "an empty shape": first_leaf(shape=[0]),
    "a shape of texts": first_leaf(shape=["4"]),
    "another dtype": first_leaf(dtype="float64"),
    "a dtype that is none": first_leaf(dtype="load"),
    "a file outside": first_leaf(file="../../victim.memmap"),
    "an absolute file": first_leaf(file="/etc/passwd.memmap"),
    "a hidden file": first_leaf(file=".x.memmap"),
    "a file with a NUL": first_leaf(file="a\0b.memmap"),
    "the description": first_leaf(file="../cache.json"),
    "two leaves in one file": lambda said: said["leaves"][0].update(file=said["leaves"][1]["file"]),
    "no leaves": lambda said: said.update(leaves=[]),
    "more rows than samples": lambda said: said.update(rows=ROWS + 1),
    "very many rows": lambda said: said.update(rows=1 << 60, length=1 << 60),
    "negative rows": lambda said: said.update(rows=-1),
    "rows that are no number": lambda said: said.update(rows=True, length=True),
    "another fingerprint": lambda said: said.update(fingerprint="0" * 32),
    "a leaf twice": first_node(node=["tuple", [["leaf", 0], ["leaf", 0]]]),
    "a leaf that is not there": first_node(node=["tuple", [["leaf", 0], ["leaf", 9]]]),
    "a leaf of another number": first_node(node=["tuple", [["leaf", 0], ["leaf", True]]]),
    "an unknown node": first_node(node=["call", [["leaf", 0], ["leaf", 1]]]),
    "no node": first_node(node=None),
    "other leaves": first_node(leaves=[]),
    "another version": lambda said: said.update(version=2),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_cache_says_is_looked_at_before_it_is_mapped(cache, what):
    hostile = changed(cache, HOSTILE[what])
    with pytest.raises(ProtocolError, match=r"damaged|structure|describes|version"):
        hostile[0]


def test_a_deep_structure_is_refused(cache):
    text = (cache.directory / DESCRIPTION).read_text()
    said = json.loads(text)
    deep = '["tuple", [' * 3000 + '["leaf", 0]' + "]]" * 3000
    said["structure"]["node"] = "DEEP"
    (cache.directory / DESCRIPTION).write_text(json.dumps(said).replace('"DEEP"', deep))
    with pytest.raises(ProtocolError):
        SampleCache(cache.dataset, cache.path)[0]


@pytest.mark.parametrize(
    "name", ["antigravity:fly", "subprocess:Popen", "os:system", "builtins:tuple", "tests.attacks.never_imported:X"]
)
def test_a_cache_imports_nothing_and_makes_named_tuples_only(cache, name):
    parts = [["leaf", 0], ["leaf", 1]]
    hostile = changed(cache, first_node(node=["named", name, parts]))
    with pytest.warns(RuntimeWarning, match="without a"):
        assert hostile[0]["row"].tolist() == [0.0] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [each["more"]["number"] for each in hostile.__getitems__([3, 4])] == [3, 4]
    assert name.partition(":")[0] not in {"antigravity", "tests.attacks.never_imported"} & sys.modules.keys()


@pytest.mark.parametrize("what", ["leaf", "directory", MARKS, DESCRIPTION])
def test_a_link_in_a_cache_is_not_followed(cache, tmp_path, what):
    name = {"leaf": f"{SAMPLES}/row.memmap", "directory": f"{SAMPLES}/more"}.get(what, what)
    path, elsewhere = cache.directory / name, tmp_path / "elsewhere"
    shutil.move(path, elsewhere)
    before = elsewhere.read_bytes() if elsewhere.is_file() else b""
    path.symlink_to(elsewhere)
    with pytest.raises(PrefetchdError):
        SampleCache(cache.dataset, cache.path)[0]
    assert (elsewhere.read_bytes() if elsewhere.is_file() else b"") == before


@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_cache_that_others_may_write_to_is_used_with_trust_only(cache, mode):
    cache.directory.chmod(mode)
    with pytest.raises(UntrustedPathError, match=rf"with mode {mode:o}; allowed.*trust=True"):
        SampleCache(cache.dataset, cache.path)[3]
    trusting = SampleCache(cache.dataset, cache.path, trust=True)
    assert trusting[3]["row"].tolist() == [3.0] * 4


@pytest.mark.parametrize("name", [MARKS, f"{SAMPLES}/row.memmap"])
def test_a_file_that_others_may_write_to_is_used_with_trust_only(cache, name):
    (cache.directory / name).chmod(0o666)
    with pytest.raises(UntrustedPathError, match="trust=True"):
        SampleCache(cache.dataset, cache.path)[3]


@as_root
def test_another_user_s_cache_is_used_with_trust_only(tmp_path, cache):
    for each in (cache.directory, *cache.directory.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    with pytest.raises(UntrustedPathError, match=f"belongs to uid {NOBODY}.*trust=True"):
        SampleCache(cache.dataset, cache.path)[3]
    with pytest.raises(UntrustedPathError):
        SampleCache(cache.dataset, cache.path).stored()
    assert SampleCache(cache.dataset, cache.path, trust=True)[3]["more"]["number"] == 3


@as_root
def test_a_cache_is_not_made_where_others_could_replace_it(open_directory):
    path = open_directory / "caches"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(CallerError, match="trust=True"):
        SampleCache(Rows(), path).store(0)
    assert list(path.iterdir()) == []
    SampleCache(Rows(), path, trust=True).store(0)


@as_root
def test_what_another_user_s_makers_have_left_is_left_alone(shared_directory, tmp_path):
    """A link to a directory of ours, called as one that is being made: nothing is made or removed behind it."""
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "precious").write_text("x")
    as_nobody(lambda: (shared_directory / f"{'a' * 32}.new-1").symlink_to(ours))
    as_nobody(lambda: (shared_directory / f"{'b' * 32}.old-1").mkdir())
    filled(shared_directory)
    assert [each.name for each in ours.iterdir()] == ["precious"]


def test_a_new_cache_is_its_maker_s_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        cache = filled(tmp_path / "caches")
    finally:
        os.umask(before)
    assert not [each for each in (cache.directory, *cache.directory.rglob("*")) if each.stat().st_mode & 0o022]


# --- bits that flip ---


def flip(cache, row, width=4):
    with open(cache.directory / SAMPLES / "row.memmap", "r+b") as file:
        file.seek(row * width * 4)
        byte = file.read(1)[0]
        file.seek(row * width * 4)
        file.write(bytes([byte ^ 1]))


def test_a_sample_that_has_changed_is_told_and_made_anew(cache):
    flip(cache, 0)
    again = SampleCache(cache.dataset, cache.path)
    with pytest.warns(RuntimeWarning, match="not what was stored, and are made anew: 0.*cache verify --fix"):
        assert again[0]["row"].tolist() == [0.0] * 4
    # It was stored anew.
    again.close()
    assert SampleCache(cache.dataset, cache.path)[0]["row"].tolist() == [0.0] * 4


@pytest.mark.parametrize("width", [4, 4096], ids=["small", "large"])
def test_once_one_was_found_all_are_looked_at(tmp_path, width):
    """Of batches that are copied at once, too: small rows by index_select, large ones one by one."""
    cache = filled(tmp_path / "caches", width)
    for row in (0, 5, 6):
        flip(cache, row, width)
    again = SampleCache(cache.dataset, cache.path)
    leaves = {"row": torch.empty(8, width), "number": torch.empty(8, dtype=torch.int64)}
    with pytest.warns(RuntimeWarning, match="0, 5, 6"):
        missing = again.gather_into(list(range(8)), [leaves["row"], leaves["number"]])
    assert sorted(missing) == [0, 5, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [each["row"][0].item() for each in again.__getitems__(list(range(8)))] == list(range(8))


def test_one_in_so_many_is_looked_at(cache):
    """Whichever it is: in two epochs of other places it is found."""
    flip(cache, CHECKED_EVERY)
    again = SampleCache(cache.dataset, cache.path)
    with pytest.warns(RuntimeWarning, match=f"made anew: {CHECKED_EVERY}"):
        found = [again[index]["row"][0].item() for index in range(CHECKED_EVERY + 1)]
    assert found == list(range(CHECKED_EVERY + 1))


def zero(cache, width=4):
    """Zeroes a leaf file in place."""
    with open(cache.directory / SAMPLES / "row.memmap", "r+b") as file:
        file.write(bytes(ROWS * width * 4))


def rows_of(cache, at_once):
    if at_once == 1:
        return [cache[index]["row"][0].item() for index in range(ROWS)]
    starts = range(0, ROWS, at_once)
    return [each["row"][0].item() for start in starts for each in cache.__getitems__(range(start, start + at_once))]


@pytest.mark.filterwarnings("ignore:sample cache")
@pytest.mark.parametrize("at_once", [1, 8])
def test_after_one_mismatch_no_damaged_sample_is_served(cache, at_once):
    """Each repaired sample used to end the full checks: of 4,000 samples 3,937 came wrong."""
    zero(cache)
    again = SampleCache(cache.dataset, cache.path)
    # Sample 0 is right, whatever the file holds: 0.
    assert again[1] is not None
    rows_of(again, at_once)
    again.close()
    # Repaired rows are right now; those that were handed out unlooked-at, before the first mismatch, are not.
    zero(cache)
    assert rows_of(SampleCache(cache.dataset, cache.path), at_once) == list(range(ROWS)), "after a reopen"


@pytest.mark.filterwarnings("ignore:sample cache")
def test_a_process_that_has_the_cache_open_hears_of_damage(cache):
    other = SampleCache(cache.dataset, cache.path)
    assert other[7]["row"][0].item() == 7, "its next checks are samples away"
    flip(cache, 0)
    assert SampleCache(cache.dataset, cache.path)[0]["row"][0].item() == 0
    zero(cache)
    assert rows_of(other, 1) == list(range(ROWS))


@pytest.mark.filterwarnings("ignore:sample cache")
def test_damage_is_listed_until_a_verify_has_fixed_it(cache):
    def listed():
        return json.loads(CliRunner().invoke(command, ["ls", str(cache.path), "--json"]).output)[0]["damage_found"]

    assert not listed()
    flip(cache, 0)
    SampleCache(cache.dataset, cache.path)[0]
    assert listed()
    assert "damage was found" in CliRunner().invoke(command, ["ls", str(cache.path)]).output
    assert CliRunner().invoke(command, ["verify", str(cache.path)]).exit_code == 0
    assert listed(), "only --fix removes the note"
    CliRunner().invoke(command, ["verify", str(cache.path), "--fix"])
    assert not listed()
    assert rows_of(SampleCache(cache.dataset, cache.path), 1) == list(range(ROWS))


@pytest.mark.filterwarnings("ignore:sample cache")
def test_one_who_may_not_write_goes_on_checking_all(cache):
    zero(cache)
    again = SampleCache(cache.dataset, cache.path)
    store = again._opened()
    os.close(store._marks_fd)
    store._fds[0] = os.open(cache.directory / MARKS, os.O_RDONLY)
    store._marks_fd, store.writable = store._fds[0], False
    rows_of(again, 1)
    assert rows_of(again, 1) == list(range(ROWS))


# --- files that somebody makes shorter ---


CUT_TO = {"nothing": 0, "a page": 4096, "a byte less": -1}


@pytest.fixture
def long(tmp_path):
    """A cache whose leaves are longer than a page; its last row is missing."""
    cache = SampleCache(Rows(1024), tmp_path / "caches")
    for index in range(ROWS - 1):
        cache.store(index)
    cache.close()
    return cache


def cut(cache, name, length):
    path = cache.directory / MARKS if name == MARKS else max((cache.directory / SAMPLES).glob("**/*.memmap"), key=size)
    os.truncate(path, length if length >= 0 else size(path) + length)


def size(path):
    return path.stat().st_size


@pytest.mark.parametrize("length", CUT_TO.values(), ids=CUT_TO)
def test_a_file_that_was_cut_before_the_cache_is_opened_is_an_error_in_words(long, length):
    cut(long, SAMPLES, length)
    again = SampleCache(long.dataset, long.path)
    with pytest.raises(ProtocolError, match="somebody has cut it"):
        again[3]


@pytest.mark.parametrize(("name", "length"), [*((SAMPLES, length) for length in CUT_TO.values()), (MARKS, 100)])
def test_a_file_that_is_cut_while_the_cache_is_open_is_an_error_in_words(long, name, length):
    """Read a row, or many; and one that is missing is not written behind the cut. In a child: else SIGBUS would end the
    run."""

    def use():
        cache = SampleCache(long.dataset, long.path)
        assert int(cache[3]["row"][0]) == 3
        cut(cache, name, length)
        for each in (lambda: cache[3], lambda: cache.__getitems__([0, 3]), lambda: cache.store(ROWS - 1)):
            with pytest.raises(ProtocolError, match="somebody has cut it"):
                each()

    told_by(forked(use))
