"""Collating: what default_collate and others make of samples, and what a batch may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate, default_convert

from tests.compatibility import material as m
from tests.compatibility.batches import each, objects
from tests.compatibility.case import Loading, case

PICKLED = "a batch leaves its worker pickled; DataLoader's workers never deliver one that cannot be"


class Mixing:
    """Mixes each sample with its neighbour, as MixUp does."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def __call__(self, samples: Any) -> Any:
        images, labels = default_collate(samples)
        return (images + images.roll(1, 0)) / 2, torch.nn.functional.one_hot(labels, self.classes).float()


class WithoutBroken:
    """Leaves out samples that are None, as many a collate_fn does."""

    def __call__(self, samples: Any) -> Any:
        return default_collate([sample for sample in samples if sample is not None])


def converted(index: int) -> Any:
    return {"array": np.full(2, index), "others": (index, "x", m.tensor(index)), "deep": [np.float32(index)]}


@case("batches", workers=0)
def default_convert_as_collate_fn() -> Loading:
    return each(converted, collate_fn=default_convert)


@case("batches", workers=0)
def default_convert_without_batching() -> Loading:
    return each(converted, batch_size=None)


@case("batches", workers=0)
def a_collate_fn_that_mixes_samples() -> Loading:
    return each(lambda index: (torch.full((3, 4, 4), index / 10), index % 3), collate_fn=Mixing(3))


@case("batches")
def a_collate_fn_that_leaves_samples_out() -> Loading:
    return each(lambda index: m.tensor(index) if index % 4 else None, collate_fn=WithoutBroken())


@case("batches", workers=0)
def a_collate_fn_that_packs() -> Loading:
    return each(m.of_length, collate_fn=lambda samples: pack_sequence(samples, enforce_sorted=False))


@case("batches", workers=0)
def a_collate_fn_that_concatenates() -> Loading:
    return each(m.of_length, collate_fn=lambda samples: (torch.cat(samples), [len(sample) for sample in samples]))


@case("batches", workers=0)
def a_collate_fn_that_nests() -> Loading:
    return each(m.of_length, collate_fn=lambda samples: torch.nested.nested_tensor(samples, layout=torch.jagged))


@case("batches", workers=0)
def batches_in_channels_last() -> Loading:
    def collate(samples: Any) -> Any:
        return torch.stack(samples).to(memory_format=torch.channels_last)

    return each(lambda index: torch.arange(48.0).reshape(3, 4, 4) + index, collate_fn=collate)


@case("batches", workers=0)
def batches_in_half_precision() -> Loading:
    return each(m.tensor, collate_fn=lambda samples: torch.stack(samples).to(torch.bfloat16))


@case("batches", workers=0, reason=PICKLED, difference=r"\[\d\]: <class 'dict_keys'> and TypeError\(.cannot pickle .*")
def a_batch_that_cannot_be_pickled() -> Loading:
    return each(int, collate_fn=lambda samples: dict.fromkeys(samples).keys())


@case("batches")
def hundreds_of_tensors() -> Loading:
    return each(lambda index: [torch.full((3,), index + place) for place in range(200)])


@case("batches", workers=0)
def deeply_nested_lists() -> Loading:
    def make(index: int) -> Any:
        nested: list[Any] = [index]
        for _ in range(200):
            nested = [nested]
        return nested

    return objects(make)


@case("batches", workers=0)
def compressed_sparse_tensors() -> Loading:
    return objects(lambda index: [m.tensor(index).to_sparse_csr(), m.tensor(index).to_sparse_csc()])


@case("batches", workers=0)
def expanded_tensors() -> Loading:
    return objects(lambda index: torch.full((1, 3), index).expand(4, 3))


@case("batches", workers=0)
def masked_arrays_and_records() -> Loading:
    return objects(lambda index: [np.ma.array([index, 2], mask=[0, 1]), np.rec.array([(1, index)], names="a,b")])


@case("batches", workers=0, needs="scipy")
def sparse_matrices_of_scipy() -> Loading:
    from scipy import sparse

    return objects(lambda index: sparse.csr_matrix(np.eye(3) * index))


@case("batches", workers=0)
def dtypes_sizes_and_devices() -> Loading:
    return objects(lambda index: [torch.float32, torch.Size([1, index]), torch.device("cpu"), torch.strided])


@case("batches", workers=0)
def default_collate_of_numbers_of_mixed_types() -> Loading:
    return each(lambda index: index if index % 2 else float(index))


@case("batches", workers=0)
def default_collate_of_empty_containers() -> Loading:
    return each(lambda index: ([], (), {}, ""))


@case("batches", workers=0)
def default_collate_of_single_samples() -> Loading:
    return each(lambda index: (m.tensor(index), index, f"s{index}", {"a": [index]}), batch_size=1)


@case("batches", workers=0)
def default_collate_refuses_sets() -> Loading:
    return each(lambda index: {index})


@case("batches", workers=0)
def default_collate_refuses_enums() -> Loading:
    return each(lambda index: m.Colour.RED)


@case("batches", workers=0)
def default_collate_refuses_none_in_a_dict() -> Loading:
    return each(lambda index: {"a": None, "b": index})


@case("batches", workers=0)
def default_collate_refuses_tensors_beside_numbers() -> Loading:
    return each(lambda index: m.tensor(index) if index % 2 else 5)


@case("batches", workers=0)
def default_collate_refuses_dtypes_that_differ() -> Loading:
    return each(lambda index: np.array(["a", index], object) if index % 2 else np.ones(2))


@case("batches", workers=0, needs="transformers")
def the_default_collator_of_transformers() -> Loading:
    from transformers import default_data_collator

    def make(index: int) -> Any:
        return {"input_ids": [index, 2, 3], "label": index % 2, "weights": np.ones(2) * index}

    return each(make, collate_fn=default_data_collator)


@case("batches", needs="transformers")
def the_padding_collator_of_transformers() -> Loading:
    from transformers import DataCollatorWithPadding

    return each(
        lambda index: {"input_ids": list(range(1 + index * 5 % 7))}, collate_fn=DataCollatorWithPadding(_words())
    )


@case("batches", needs="transformers")
def the_masking_collator_of_transformers() -> Loading:
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(_words(), mlm=False)
    return each(lambda index: {"input_ids": list(range(1 + index * 5 % 7))}, collate_fn=collator)


def _words() -> Any:
    """A tokenizer of ten words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{place}": place for place in range(2, 10)}
    model = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]")
