"""Batches into files and back: by our own client, and by safetensors alone."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import json
import os
import typing
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from prefetchd_client.batches.batch_files import BatchFileReader

from prefetchd.wire.batch_file import STREAM_FILE, file_name
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.file_codec import FilePlace, StoreError, encode_file
from prefetchd.workers.structure_nodes import UnplainError
from tests.scenario.datasets import equal

SPEC = StreamSpec("ab" * 16, 0, "sequential", 10, 4, name="träin")
POSITION = (3, 200)


class Pair(typing.NamedTuple):
    left: typing.Any
    right: typing.Any


@dataclasses.dataclass
class Sample:
    pixels: torch.Tensor
    name: str


CLASSES = (Pair, Sample)


@pytest.fixture
def through(tmp_path):
    """through(batch) writes it; (what our client reads, what safetensors does, metadata)."""
    (tmp_path / STREAM_FILE).write_text("{}")

    def write(batch):
        path = tmp_path / file_name(POSITION)
        encoded = encode_file(batch, SPEC, POSITION)
        encoded.write(FilePlace(str(path), str(tmp_path / STREAM_FILE)))
        assert path.stat().st_size == encoded.payload_bytes
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        return BatchFileReader(str(tmp_path), CLASSES).batch(POSITION), tensors, metadata

    return write


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (torch.arange(6).view(2, 3), {"batch"}),
        ((torch.ones(2, 3), torch.tensor([1, 2])), {"0", "1"}),
        ([torch.ones(2), [torch.zeros(1), "text"]], {"0", "1.0"}),
        ({"image": torch.ones(2), "path": ["a", "ü"], "n": 3, "none": None}, {"image"}),
        (Pair(torch.ones(1), {"deep": Pair(torch.zeros(2), 1.5)}), {"left", "right.deep.left"}),
        ({"empty": torch.empty(0, 3), "scalar": torch.tensor(4.5), "flag": torch.tensor([True])},
         {"empty", "scalar", "flag"}),
        ({"half": torch.ones(3, dtype=torch.bfloat16), "byte": torch.ones(3, dtype=torch.uint8)}, {"half", "byte"}),
        ({"wide": torch.ones(2, dtype=torch.complex128)}, {"object.0"}),
        ({"turned": torch.ones(2, dtype=torch.complex64).conj(), "grad": torch.ones(2).requires_grad_()},
         {"object.0", "object.1"}),
        ([np.array(["2020-01-01"], "M8[D]"), np.array(1 + 2j), np.float32(1.5), np.array(["a", 3], object)],
         {"object.0", "object.1"}),
        ([float("inf"), float("-inf"), 2 + 1j, b"bytes", 1 << 80, {1, 2}, Path("a/b"), collections.OrderedDict(a=1),
          torch.Size([1, 2]), dt.datetime(2020, 1, 2), {(1, "a"): None}], set()),
        ({"array": np.arange(6, dtype=np.int16).reshape(2, 3), "text": np.array(["a", "b"])}, {"array"}),
        ([np.str_(""), np.bytes_(b""), dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc)], set()),
        ("a text", set()),
        ([1, 2, 3], set()),
    ],
)  # fmt: skip
def test_what_is_written_is_read_and_named_by_its_place(through, batch, names):
    found, tensors, _ = through(batch)
    assert equal(found, batch)
    assert set(tensors) == names


def test_tensors_are_what_safetensors_reads(through):
    batch = {"image": torch.rand(4, 3, 8, 8), "label": torch.arange(4), "odd": torch.arange(3, dtype=torch.int8)}
    _, tensors, _ = through(batch)
    assert all(torch.equal(tensors[name], batch[name]) for name in batch)


def test_numpy_reads_it(through, tmp_path):
    through((torch.arange(6.0).view(2, 3), np.arange(3)))
    arrays = safetensors.numpy.load_file(tmp_path / file_name(POSITION))
    assert arrays["0"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["1"].tolist() == [0, 1, 2]


def test_what_is_no_tensor_is_text_by_its_place(through):
    _, _, metadata = through({"image": torch.ones(2), "meta": {"paths": ["a", "b"], "size": 3}, "nan": float("nan")})
    assert json.loads(metadata["values"]) == {"meta.paths": ["a", "b"], "meta.size": 3}
    told = (metadata["stream"], metadata["fingerprint"], metadata["epoch"], metadata["batch"])
    assert told == (SPEC.name, SPEC.fingerprint, "3", "200")


def test_views_are_stored_dense_and_the_same_tensor_once(through):
    base = torch.arange(6).view(2, 3)
    found, tensors, _ = through({"turned": base.t(), "same": base, "again": base})
    assert torch.equal(found["turned"], base.t())
    assert found["same"] is found["again"]
    assert set(tensors) == {"turned", "same"}


def test_objects_come_back_with_their_tensors(through):
    found, tensors, _ = through([Sample(torch.ones(2), "a")])
    assert found[0].name == "a"
    assert torch.equal(found[0].pixels, torch.ones(2))
    assert set(tensors) == {"0.pixels"}


def test_what_is_no_number_comes_back(through):
    found, _, _ = through([float("nan"), np.float64("nan")])
    assert found[0] != found[0]
    assert type(found[1]) is np.float64


def test_two_places_of_one_name_are_two_tensors(through):
    found, tensors, _ = through({1: torch.ones(2), "1": torch.zeros(2)})
    assert found[1].sum() == 2
    assert found["1"].sum() == 0
    assert len(tensors) == 2


@pytest.mark.parametrize(
    "value", [torch.nn.Linear(1, 1), len, int, lambda: 1, np.zeros(2, [("a", int)]), torch.ones(2, 2).to_mkldnn()]
)
def test_what_a_file_cannot_hold_is_named(value):
    with pytest.raises(UnplainError, match=r"a batch holds a .*allowed in a batch file"):
        encode_file([value], SPEC, POSITION)


def test_a_batch_that_holds_itself_is_named():
    batch = []
    batch.append(batch)
    with pytest.raises(UnplainError, match="holds itself"):
        encode_file(batch, SPEC, POSITION)


def test_sparse_tensors_live_no_longer_than_they_are_held(through):
    """torch keeps those that it unpickles until its next torch.load()."""
    found, _, _ = through([torch.eye(3).to_sparse()])
    assert torch.equal(found[0].to_dense(), torch.eye(3))
    lives = weakref.ref(found[0])
    del found
    assert lives() is None


def test_tensors_lie_where_their_items_want_to(through, tmp_path):
    found, _, _ = through([torch.ones(3, dtype=torch.uint8), torch.ones(5, dtype=torch.float64), torch.ones(1).half()])
    for tensor in found:
        assert tensor.data_ptr() % tensor.element_size() == 0


def test_what_the_holder_writes_stays_with_it_and_lives_without_the_file(through, tmp_path):
    found, _, _ = through({"image": torch.ones(2000)})
    found["image"].zero_()
    assert BatchFileReader(str(tmp_path), CLASSES).batch(POSITION)["image"].sum() == 2000
    (tmp_path / file_name(POSITION)).unlink()
    assert found["image"].sum() == 0


def test_without_room_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / STREAM_FILE).write_text("{}")
    encoded = encode_file(torch.ones(1000), SPEC, POSITION)
    place = FilePlace(str(tmp_path / "batch"), str(tmp_path / STREAM_FILE))
    written = []

    def writev(fd, parts):
        if written:
            raise OSError(28, os.strerror(28))
        written.append(os.write(fd, parts[0][:10]))
        return 10

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(StoreError, match="No space left on device"):
        encoded.write(place)
    assert not (tmp_path / "batch").exists()
    monkeypatch.undo()
    encoded.write(place)
    assert (tmp_path / "batch").stat().st_size == encoded.payload_bytes


def test_into_another_directory_than_the_one_that_was_meant_nothing_is_written(tmp_path):
    with pytest.raises(StoreError):
        encode_file(torch.ones(1), SPEC, POSITION).write(FilePlace(str(tmp_path / "b"), str(tmp_path / STREAM_FILE)))
    assert list(tmp_path.iterdir()) == []
