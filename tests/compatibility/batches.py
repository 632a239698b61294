"""Batches: whatever a collate_fn may return arrives as it was."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import math
import pathlib
import types
import uuid
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading

GRAPH = "a graph cannot leave its process: DataLoader with workers raises, ours gives the values as a leaf"
LOCAL = "a class that only exists in the worker cannot be found by the trainer; DataLoader with workers hangs over it"


def each(make: Any, length: int = 10, **arguments: Any) -> Loading:
    """Batches of three samples, default_collate unless said otherwise."""
    return loading(m.Made(make, length), **({"batch_size": 3} | arguments))


def objects(make: Any, length: int = 4) -> Loading:
    """Lists of what `make` gives, two at a time."""
    return each(make, length, batch_size=2, collate_fn=m.as_it_is)


# --- default_collate ---


@case("batches")
def tensors() -> Loading:
    return each(m.tensor)


@case("batches", workers=0)
def python_numbers() -> Loading:
    return each(lambda index: (index, index / 3, bool(index % 2)))


@case("batches")
def nested_tuples_lists_and_dicts() -> Loading:
    return each(lambda index: (m.tensor(index), [index, {"a": (m.tensor(index), index / 2), "b": [m.tensor(index)]}]))


@case("batches")
def namedtuples() -> Loading:
    return each(lambda index: m.Pair(m.tensor(index), m.PlainPair(index, m.tensor(index))))


@case("batches", workers=0)
def namedtuples_of_a_class_s_body() -> Loading:
    return each(lambda index: m.Holder.Batch(m.tensor(index), m.Holder.Elsewhere(index)))


@case("batches", workers=0)
def classes_that_a_function_has_made() -> Loading:
    kinds = m.made_within("one"), m.made_within("other")
    return objects(lambda index: [kind(m.tensor(index)) for kind in kinds])


@case("batches", workers=0)
def dict_keys_keep_their_order() -> Loading:
    return each(lambda index: {"z": index, "a": m.tensor(index), 3: index, (1, "b"): index})


@case("batches")
def ordered_and_default_dicts() -> Loading:
    def make(index: int) -> Any:
        return collections.OrderedDict(b=index, a=m.tensor(index)), collections.defaultdict(list, {"x": index})

    return each(make)


@case("batches", workers=0)
def mappings_and_sequences_of_the_user_s_own() -> Loading:
    return each(lambda index: (m.Labelled(a=index, b=m.tensor(index)), m.Numbers([index, m.tensor(index)])))


@case("batches", workers=0)
def strings_and_bytes() -> Loading:
    return each(lambda index: {"name": f"sample {index}", "raw": bytes([index]), "empty": ""})


@case("batches", workers=0)
def tensors_of_every_dtype() -> Loading:
    names = "uint8 int8 int16 int32 int64 uint16 uint32 uint64 bool float16 bfloat16 float32 float64"
    names += " complex32 complex64 complex128 float8_e4m3fn float8_e5m2"
    return each(lambda index: {name: m.tensor(index).to(getattr(torch, name)) for name in names.split()})


@case("batches", workers=0)
def arrays_of_every_dtype() -> Loading:
    names = "u1 i1 i2 i4 i8 u2 u4 u8 ? f2 f4 f8 c8 c16"
    return each(lambda index: {name: np.arange(index, index + 4).astype(name).reshape(2, 2) for name in names.split()})


@case("batches", workers=0)
def numpy_scalars() -> Loading:
    return each(lambda index: (np.float32(index), np.int16(index), np.bool_(index % 2), np.complex64(1j * index)))


@case("batches", workers=0)
def tensors_and_arrays_without_dimensions() -> Loading:
    return each(lambda index: (torch.tensor(index), np.array(index / 2), torch.tensor(index > 2)))


@case("batches", workers=0)
def empty_tensors_and_arrays() -> Loading:
    return each(lambda index: (torch.empty(0), torch.empty(2, 0, 3, dtype=torch.int8), np.empty((0, 4), np.float16)))


@case("batches", workers=0)
def not_a_number_and_infinities() -> Loading:
    values = [math.nan, math.inf, -math.inf, -0.0]
    return each(lambda index: (values[index % 4], torch.tensor(values), np.float32(values[index % 4])))


@case("batches", workers=0)
def large_python_integers() -> Loading:
    return each(lambda index: (1 << 62) + index)


@case("batches", workers=0)
def samples_with_strides() -> Loading:
    def make(index: int) -> Any:
        image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4) + index
        return (
            torch.from_numpy(image).permute(2, 0, 1),
            image.transpose(1, 0, 2),
            image[:, ::2],
            torch.ones(3).expand(4, 3),
        )

    return each(make)


@case("batches", workers=0)
def conjugated_and_negated_tensors() -> Loading:
    def make(index: int) -> Any:
        number = torch.tensor([1 + 2j, index + 0j])
        return number.conj(), number.conj().imag

    return each(make)


@case("batches", workers=0)
def read_only_arrays() -> Loading:
    return each(lambda index: np.frombuffer(bytes([index, 2, 3, 4]), np.uint8))


@case("batches", workers=0, reason=GRAPH, difference=r"\[\d\]\.is_leaf: False and True")
def samples_that_require_grad() -> Loading:
    return each(lambda index: m.tensor(index).requires_grad_())


@case("batches")
def a_last_batch_that_is_smaller() -> Loading:
    return each(m.tensor, length=11, batch_size=4)


@case("batches")
def one_batch_of_several_megabytes() -> Loading:
    return each(lambda index: torch.full((3, 256, 256), index / 7), length=6)


@case("batches", workers=0)
def samples_of_another_dtype_now_and_then() -> Loading:
    return each(lambda index: index if index % 4 else index / 2)


@case("batches", workers=0)
def none_in_a_batch_of_its_own() -> Loading:
    return objects(lambda index: None if index % 2 else (None, index))


# --- whole batches: what a collate_fn returns ---


@case("batches")
def dataclasses_in_batches() -> Loading:
    return objects(lambda index: (m.Record(f"r{index}", m.tensor(index), [1.5]), m.Slotted("s", m.tensor(index))))


@case("batches")
def python_values_of_every_kind() -> Loading:
    def make(index: int) -> Any:
        values = [
            None,
            True,
            index,
            1 << 100,
            -1.5,
            math.nan,
            2j,
            "text",
            "Жук \ud83d\udc1e",
            b"bytes",
            bytearray(b"a"),
        ]
        values += [range(index), slice(1, index, 2), Ellipsis, {1, 2}, frozenset({3}), (), [], {}, ((),)]
        values += [decimal.Decimal("1.50"), fractions.Fraction(1, 3), dt.datetime(2024, 2, 29, 12, 0)]
        values += [dt.timedelta(seconds=index), pathlib.PurePosixPath("a/b"), uuid.UUID(int=index)]
        values += [collections.Counter("abca"), collections.deque([1, 2], maxlen=3), types.SimpleNamespace(a=index)]
        return values

    return objects(make)


@case("batches")
def enums_stay_the_same_members() -> Loading:
    return objects(lambda index: (m.Colour.RED, m.Flags.FLIPPED | m.Flags.CROPPED, m.Colour))


@case("batches")
def functions_and_classes() -> Loading:
    return objects(lambda index: (m.tensor, m.Bag, torch.sum, len, torch.float16, torch.device("cpu"), torch.Size([2])))


@case("batches")
def objects_with_attributes() -> Loading:
    return objects(lambda index: m.Bag(pixels=m.tensor(index), more=m.Bag(names=["a", str(index)], where=None)))


@case("batches")
def objects_that_pickle_themselves() -> Loading:
    return objects(lambda index: m.Stateful(m.tensor(index)))


@case("batches")
def objects_with_pin_memory() -> Loading:
    return objects(lambda index: m.Pinnable(pixels=m.tensor(index)))


@case("batches")
def objects_with_pin_memory_where_there_is_no_accelerator() -> Loading:
    # Without one DataLoader leaves memory alone; with one these would be pinned.
    pins = torch.accelerator.is_available()
    return each(lambda index: m.Pinnable(pixels=m.tensor(index)), collate_fn=m.as_it_is, pin_memory=not pins)


@case("batches")
def subclasses_of_builtin_types() -> Loading:
    def make(index: int) -> Any:
        numbers = m.Numbers([index])
        numbers.unit = "m"
        return m.Words("ab"), numbers, m.Labelled(a=m.tensor(index))

    return objects(make)


@case("batches")
def a_tensor_with_two_names() -> Loading:
    def make(index: int) -> Any:
        one = m.tensor(index)
        return {"a": one, "b": [one, one], "other": m.tensor(index)}

    return objects(make)


@case("batches")
def an_object_with_two_names() -> Loading:
    def make(index: int) -> Any:
        shared, pair = [index], (index, [index])
        return {"a": shared, "b": {"c": shared}, "bag": m.Bag(inner=shared), "pairs": [pair, pair]}

    return objects(make)


@case("batches")
def a_list_that_contains_itself() -> Loading:
    def make(index: int) -> Any:
        endless: list[Any] = [index]
        endless.append(endless)
        return endless

    return objects(make)


@case("batches")
def views_of_one_tensor() -> Loading:
    def make(index: int) -> Any:
        one = torch.arange(24.0).reshape(4, 6) + index
        return one, one[1:3], one.t(), one[:, 0], one.view(-1)[5:]

    return objects(make)


@case("batches", workers=0)
def a_view_of_a_part_of_a_tensor() -> Loading:
    return objects(lambda index: (torch.arange(1000)[index : index + 5], torch.arange(24).reshape(4, 6)[:, 1:3]))


@case("batches")
def strides_of_whole_tensors() -> Loading:
    def make(index: int) -> Any:
        image = torch.arange(24.0).reshape(1, 2, 3, 4) + index
        parts = [image.permute(0, 3, 1, 2), image.to(memory_format=torch.channels_last), torch.ones(1).expand(5, 3)]
        return [*parts, torch.empty(0, 3).t(), torch.empty_strided((1, 4), (9, 1)).fill_(1)]

    return objects(make)


@case("batches")
def tensors_without_dimensions_and_without_elements() -> Loading:
    return objects(lambda index: (torch.tensor(index), torch.empty(0), torch.empty(0, 5, dtype=torch.bool)))


@case("batches", workers=0)
def whole_tensors_conjugated_and_negated() -> Loading:
    def make(index: int) -> Any:
        number = torch.tensor([1 + 2j, index + 0j])
        return number.conj(), number.conj().imag

    return objects(make)


@case("batches")
def sparse_tensors() -> Loading:
    def make(index: int) -> Any:
        dense = torch.tensor([[0.0, index + 1], [2.0, 0.0]])
        return dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()

    return objects(make)


@case("batches", workers=0)
def sparse_tensors_that_are_not_coalesced() -> Loading:
    return objects(lambda index: torch.sparse_coo_tensor([[0, 0]], [1.0, index], (3,), is_coalesced=False))


@case("batches", workers=0)
def nested_tensors() -> Loading:
    return objects(lambda index: torch.nested.nested_tensor([torch.ones(2), torch.ones(3) * index]))


@case("batches", workers=0)
def jagged_tensors() -> Loading:
    def make(index: int) -> Any:
        jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3) * index], layout=torch.jagged)
        wide = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
        return jagged, wide, jagged.values(), jagged.offsets()

    return objects(make)


@case("batches", workers=0)
def quantized_tensors() -> Loading:
    return objects(lambda index: torch.quantize_per_tensor(m.tensor(index), 0.5, 3, torch.qint8))


@case("batches", workers=0)
def tensors_on_the_meta_device() -> Loading:
    return objects(lambda index: torch.empty(2, 3, device="meta"))


@case("batches")
def leaves_that_require_grad() -> Loading:
    return objects(lambda index: m.tensor(index).requires_grad_())


@case("batches")
def parameters() -> Loading:
    return objects(lambda index: torch.nn.Parameter(m.tensor(index), requires_grad=index % 2 == 0))


@case("batches")
def modules() -> Loading:
    return objects(lambda index: torch.nn.Linear(2, 1).requires_grad_(False).apply(_fill_with_ones))


@case("batches", workers=0)
def tensors_with_attributes() -> Loading:
    def make(index: int) -> Any:
        tensor = m.tensor(index)
        tensor.name = f"tensor {index}"
        return tensor

    return objects(make)


@case("batches")
def subclasses_of_tensor() -> Loading:
    def make(index: int) -> Any:
        boxes = m.tensor(index).as_subclass(m.Boxes)
        boxes.format = "xyxy"
        return boxes

    return objects(make)


@case("batches", workers=0)
def subclasses_of_tensor_collated() -> Loading:
    return each(lambda index: m.tensor(index).as_subclass(m.Boxes))


@case("batches")
def packed_sequences() -> Loading:
    return each(m.of_length, collate_fn=_packed)


@case("batches", workers=0)
def arrays_in_batches() -> Loading:
    def make(index: int) -> Any:
        table = np.array([(1, 2.5), (index, 0.5)], dtype=[("a", "i4"), ("b", "f8")])
        days = np.array(["2024-02-29", "NaT"], "M8[D]"), np.array([index, 3], "m8[s]")
        texts = np.array(["a", "bcd"]), np.array([b"ab", b"c"]), np.array(["a", None, [index]], dtype=object)
        return [table, table[0], *days, *texts, np.empty((0, 3)), np.array(index), np.arange(3, dtype=">i4")]

    return objects(make)


@case("batches", workers=0)
def large_arrays_in_batches() -> Loading:
    def make(index: int) -> Any:
        image = np.arange(3000.0).reshape(10, 300) + index
        return image, np.asfortranarray(image), image.astype(">f4"), image.astype("f2")

    return objects(make)


@case("batches")
def arrays_that_are_views() -> Loading:
    def make(index: int) -> Any:
        image = np.arange(3000.0).reshape(10, 300) + index
        return image[2:5], image[:, ::3], image[::-1], image.T, np.broadcast_to(image[0], (2, 300))

    return objects(make)


@case("batches", workers=0)
def arrays_that_are_read_only() -> Loading:
    def make(index: int) -> Any:
        small, large = np.arange(5), np.arange(3000) + index
        small.flags.writeable = large.flags.writeable = False
        return small, large

    return objects(make)


@case("batches")
def subclasses_of_array() -> Loading:
    def make(index: int) -> Any:
        return np.arange(4).view(m.Tagged), np.ma.masked_array([1.0, index], mask=[True, False]), np.asmatrix([[1, 2]])

    return objects(make)


@case("batches")
def numpy_values_in_batches() -> Loading:
    return objects(lambda index: (np.float32(index), np.str_("a"), np.datetime64("2024-02-29"), np.dtype("i4")))


@case("batches")
def an_array_with_two_names() -> Loading:
    def make(index: int) -> Any:
        small, large = np.arange(5) + index, np.arange(3000) + index
        return [small, large, {"small": small, "large": large}]

    return objects(make)


@case("batches")
def long_lists_of_strings() -> Loading:
    return objects(lambda index: [f"token {index} {place}" for place in range(5000)])


@case("batches", workers=0)
def a_batch_of_nothing() -> Loading:
    return each(m.tensor, collate_fn=_nothing)


@case("batches", workers=0)
def a_batch_that_is_one_number() -> Loading:
    return each(lambda index: index, collate_fn=sum)


@case("batches", workers=0)
def a_batch_that_is_a_string() -> Loading:
    return each(str, collate_fn="-".join)


@case(
    "batches", workers=0, reason=LOCAL, difference=r"\[\d\]: .*list'> and AttributeError\(.*_local\.<locals>\.Local.*\)"
)
def classes_that_only_the_worker_has() -> Loading:
    return objects(_local)


# --- variable shapes ---


@case("batches")
def padding_to_the_longest() -> Loading:
    return each(m.of_length, length=24, collate_fn=m.padded)


@case("batches")
def token_lists_padded_by_a_tokenizer_s_rules() -> Loading:
    def make(index: int) -> Any:
        return {"input_ids": list(range(index % 5 + 1)), "labels": index % 2}

    return each(make, length=24, collate_fn=_as_tokenizers_pad)


@case("batches")
def images_of_many_sizes_as_a_list() -> Loading:
    return each(
        lambda index: (torch.ones(3, 2 + index % 3, 4), {"boxes": torch.ones(index % 4, 4)}), collate_fn=_zipped
    )


@case("batches", workers=0)
def shapes_that_grow_from_batch_to_batch() -> Loading:
    return each(lambda index: torch.full((1 << index // 3,), index), length=36)


# --- of other packages ---


@case("batches", needs="torchvision")
def tv_tensors() -> Loading:
    from torchvision import tv_tensors as tv

    def make(index: int) -> Any:
        boxes = tv.BoundingBoxes(torch.tensor([[0, 0, 1 + index, 2]]), format="XYXY", canvas_size=(8, 9))
        return tv.Image(torch.full((3, 2, 2), index, dtype=torch.uint8)), boxes, tv.Mask(torch.ones(1, 2, 2))

    return objects(make)


@case("batches", workers=0, needs="torchvision")
def tv_tensors_collated() -> Loading:
    from torchvision import tv_tensors as tv

    return each(lambda index: tv.Image(torch.full((3, 2, 2), index, dtype=torch.uint8)))


@case("batches", needs="PIL")
def pictures() -> Loading:
    from PIL import Image

    return objects(lambda index: Image.new("RGB", (4, 3 + index), (index, 2, 3)))


@case("batches", needs="tensordict")
def tensordicts() -> Loading:
    from tensordict import TensorDict

    def make(index: int) -> Any:
        return TensorDict({"a": m.tensor(index), "deep": {"b": torch.tensor([[index], [2]])}}, batch_size=[2])

    return each(make, collate_fn=torch.stack)


@case("batches", needs="tensordict")
def tensordicts_in_a_list() -> Loading:
    from tensordict import TensorDict

    return objects(lambda index: TensorDict({"a": m.tensor(index), "text": "some"}, batch_size=[]))


@case("batches", needs="tensordict")
def tensorclasses() -> Loading:
    from tests.compatibility.tensorclasses import Scene

    return each(
        lambda index: Scene(m.tensor(index), torch.tensor([index, 1]), "night", batch_size=[2]), collate_fn=torch.stack
    )


@case("batches", needs="transformers")
def batch_encodings() -> Loading:
    from transformers import BatchEncoding

    def together(samples: Any) -> Any:
        return BatchEncoding({"input_ids": torch.stack(samples), "text": [str(each) for each in samples]})

    return each(lambda index: torch.arange(5) + index, collate_fn=together)


# --- of the script itself ---


@case("batches")
def namedtuples_of_the_script() -> Loading:
    return each(m.main().main_pair)


@case("batches")
def dataclasses_and_enums_of_the_script() -> Loading:
    return objects(m.main().main_record)


@case("batches")
def subclasses_of_tensor_of_the_script() -> Loading:
    kind = m.main().MainTensor
    return objects(lambda index: m.tensor(index).as_subclass(kind))


@case("batches")
def a_collate_fn_of_the_script() -> Loading:
    return each(lambda index: index, collate_fn=m.main().main_collate)


def _fill_with_ones(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.fill_(1)


def _packed(samples: Any) -> Any:
    return pack_sequence(samples, enforce_sorted=False)


def _nothing(samples: Any) -> None:
    return None


def _local(index: int) -> Any:
    class Local:
        pass

    return Local()


def _zipped(samples: Any) -> Any:
    return tuple(zip(*samples))


def _as_tokenizers_pad(samples: Any) -> Any:
    longest = max(len(each["input_ids"]) for each in samples)
    ids = [each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in samples]
    mask = [[1] * len(each["input_ids"]) + [0] * (longest - len(each["input_ids"])) for each in samples]
    labels = default_collate([each["labels"] for each in samples])
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": labels}
