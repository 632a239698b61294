"""From a payload to the batch: tensors over its memory, which keep it and let it go; damage is told."""

from __future__ import annotations

import collections
import ctypes
import io
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from prefetchd_client.batches import tensors
from prefetchd_client.batches.tensors import REMEMBERED, REMEMBERED_META_BYTES, BatchReader, private_copy

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.slot_layout import DTYPES, HEAD, ViewEntry, encode_meta, layout_payload
from prefetchd.workers.batch_codec import encode_batch
from tests.unit.workers.comparing import differences


def payload_of(batch: Any, room: int = 0) -> Any:
    encoded = encode_batch(batch)
    payload = (ctypes.c_ubyte * max(encoded.payload_bytes, room))()
    encoded.write(payload)
    return payload


def inside(payload: Any, tensor: torch.Tensor) -> bool:
    begin = ctypes.addressof(payload)
    return begin <= tensor.data_ptr() < begin + ctypes.sizeof(payload)


# --- memory ---


def test_tensors_and_large_arrays_look_at_the_payload():
    payload = payload_of({"t": torch.arange(10), "view": torch.arange(10)[2:], "a": np.arange(1000)})
    batch = BatchReader().read(payload)
    assert inside(payload, batch["t"])
    assert inside(payload, batch["view"])
    assert inside(payload, torch.from_numpy(batch["a"]))


def test_writing_to_a_batch_writes_to_the_payload_alone():
    payload = payload_of([torch.zeros(3), np.zeros(1000)])
    copy = private_copy(payload)
    tensor, array = BatchReader().read(payload)
    tensor[0] = 5
    array[7] = 5
    again = BatchReader().read(payload)
    assert (again[0][0], again[1][7]) == (5, 5)
    kept = BatchReader().read(copy)
    assert not kept[0].any()
    assert not kept[1].any()


def test_a_private_copy_is_the_payload_without_the_rest_of_its_slot():
    payload = payload_of([torch.arange(5), "text"], room=1 << 16)
    copy = private_copy(payload)
    assert ctypes.sizeof(copy) < 1024
    assert differences(BatchReader().read(copy), [torch.arange(5), "text"]) == []


@pytest.mark.parametrize(
    "hold",
    [
        lambda batch: batch["t"],
        lambda batch: batch["t"][1:],
        lambda batch: batch["t"].view(torch.uint8),
        lambda batch: batch["t"].numpy(),
        lambda batch: batch["strided"],
        lambda batch: batch["strided"].detach(),
        lambda batch: batch["t"].untyped_storage(),
        lambda batch: batch["storage"],
        lambda batch: batch["a"],
        lambda batch: batch["a"][::2],
        lambda batch: torch.from_numpy(batch["a"]),
        lambda batch: memoryview(batch["a"]),
        lambda batch: batch["parameter"],
    ],
)
def test_whatever_looks_at_the_payload_keeps_it_and_the_last_one_lets_it_go(hold):
    reader = BatchReader()
    for _ in range(2):
        batch = {"t": torch.arange(10), "strided": torch.arange(10)[::2], "a": np.arange(1000.0)}
        batch["storage"] = torch.arange(7).untyped_storage()
        batch["parameter"] = torch.nn.Parameter(torch.ones(2))
        payload = payload_of(batch)
        gone = weakref.ref(payload)
        held = hold(reader.read(payload))
        del payload, batch
        assert gone() is not None
        del held
        assert gone() is None


def test_a_batch_without_tensors_keeps_nothing():
    payload = payload_of(["only", {"small": 1}, np.arange(3)])
    gone = weakref.ref(payload)
    batch = BatchReader().read(payload)
    del payload
    assert gone() is None
    assert batch[0] == "only"


# --- remembered metas ---


def test_payloads_with_equal_metas_each_have_their_own_bytes():
    reader = BatchReader()
    for k in range(3):
        assert (
            differences(reader.read(payload_of([torch.full((4,), k), {"x": k % 1}])), [torch.full((4,), k), {"x": 0}])
            == []
        )
    assert len(reader._recipes) == 1


def test_what_is_remembered_is_bounded():
    reader = BatchReader()
    for k in range(3 * REMEMBERED):
        assert reader.read(payload_of([torch.ones(1), k]))[1] == k
        assert len(reader._recipes) <= REMEMBERED
    reader = BatchReader()
    reader.read(payload_of("x" * REMEMBERED_META_BYTES))
    assert not reader._recipes


def test_containers_of_one_batch_are_not_another_s():
    reader = BatchReader()
    payload = payload_of({"list": [1, 2], "t": torch.ones(1)})
    reader.read(payload)["list"].append(3)
    assert reader.read(payload)["list"] == [1, 2]


# --- damage ---


def test_what_is_no_batch_is_told():
    for bytes_ in (b"", b"x" * 10, b"\0" * 4096, b"\xff" * 4096):
        with pytest.raises(ProtocolError):
            BatchReader().read((ctypes.c_ubyte * len(bytes_))(*bytes_))


def test_a_meta_that_is_longer_than_its_payload_is_told():
    payload = payload_of(["x" * 1000, torch.ones(3)])
    for length in (HEAD.size - 1, HEAD.size, HEAD.size + 30, 500):
        with pytest.raises(ProtocolError):
            BatchReader().read((ctypes.c_ubyte * length)(*payload[:length]))


def test_a_dtype_that_this_torch_lacks_is_told(monkeypatch):
    payload = payload_of(torch.ones(2, dtype=torch.float8_e5m2))
    known = list(tensors._TORCH_DTYPES)
    known[DTYPES.index("float8_e5m2")] = None
    monkeypatch.setattr(tensors, "_TORCH_DTYPES", known)
    with pytest.raises(ProtocolError, match="float8_e5m2, which this torch does not know"):
        BatchReader().read(payload)


def test_an_unknown_persistent_id_is_told():
    class Odd(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("newer", 1) if obj == "here" else None

    skeleton = io.BytesIO()
    Odd(skeleton, 5).dump(["here"])
    text = encode_meta(layout_payload([], (), skeleton.getvalue()))
    with pytest.raises(ProtocolError, match="'newer'"):
        BatchReader().read((ctypes.c_ubyte * len(text))(*text))


def test_a_view_beyond_its_storage_is_told():
    meta = layout_payload([(8, 0)], (ViewEntry(0, DTYPES.index("float32"), 1, (2,), (1,)),), pickle.dumps(None))
    text = encode_meta(meta)
    payload = (ctypes.c_ubyte * meta.payload_bytes)(*text)
    with pytest.raises(ProtocolError, match="beyond its storage"):
        BatchReader().read(payload)


# --- skeletons without an unpickler ---


@pytest.mark.parametrize(
    "batch",
    [
        [torch.zeros(2), torch.ones(3)],
        (torch.zeros(2), [torch.ones(3), "text", 4, None, 1.5, b"x", True, 2j]),
        {"a": torch.zeros(2), 3: (torch.ones(1),)},
        torch.zeros(2),
        [torch.ones(3), [torch.zeros(2)]],
        [torch.ones(3), [], [[]]],
        [[], torch.ones(3)],
        (torch.ones(3), []),
        [],
        (),
        {},
    ],
    ids=str,
)
def test_an_ordinary_batch_is_built_without_an_unpickler_and_anew_each_time(batch, monkeypatch):
    payload = payload_of(batch)
    reader = BatchReader()
    first, second = reader.read(payload), reader.read(payload)
    monkeypatch.setattr(tensors._Unpickler, "load", lambda self: pytest.fail("it was unpickled"))
    assert differences(first, batch) == differences(second, batch) == []
    if type(batch) in (list, dict):
        first.clear()
        assert differences(reader.read(payload), batch) == [], "what a holder does to its batch is its own affair"


def test_what_is_not_ordinary_is_left_to_the_unpickler():
    shared = [1, 2]
    first, second = BatchReader().read(payload_of([shared, shared]))
    assert first is second
    for batch in ([collections.OrderedDict(a=1)], [{1, 2}], [np.float32(1.5)], {(1, "a"): 1}):
        read = BatchReader().read(payload_of(batch))
        assert read == batch
        assert [type(each) for each in read] == [type(each) for each in batch]


def test_a_meta_that_is_longer_than_a_page_is_not_known_by_its_first_page():
    reader = BatchReader()
    for length in (10, 5000):
        for text in ("a" * length, "b" * length, "a" * length):
            payload = payload_of([text, torch.arange(3)])
            assert reader.read(payload, bytes(payload), 0)[0] == text
