"""A tiny model and texts of different lengths for HF Trainer, with DataLoader and with ours."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from prefetchd_client import PrefetchLoader
from prefetchd_client.integrations.accelerate import prepare
from torch.utils.data import Dataset

SAMPLES, ROWS, STEPS, EPOCHS = 22, 4, 6, 2


class Texts(Dataset[dict[str, Any]]):
    """Text i is i + 1, several times; `number` is nothing that the model takes."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= SAMPLES:
            raise IndexError(index)
        words = 3 + index * 5 % 7
        return {"input_ids": [index + 1] * words, "attention_mask": [1] * words, "label": index % 2, "number": index}


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Refuses columns that the trainer should have removed."""
    assert not any("number" in sample for sample in samples)
    longest = max(len(sample["input_ids"]) for sample in samples)

    def filled(name: str) -> torch.Tensor:
        return torch.tensor([sample[name] + [0] * (longest - len(sample[name])) for sample in samples])

    labels = torch.tensor([sample["label"] for sample in samples])
    return {"input_ids": filled("input_ids"), "attention_mask": filled("attention_mask"), "labels": labels}


class Noting(transformers.Trainer):  # type: ignore[misc]
    """`seen`: the texts of each training batch; `loaders`: what get_train_dataloader() and the other made."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seen: list[list[int]] = []

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        self.seen.append(inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *rest)


class Prefetching(Noting):
    """The lines of docs/trainers.md."""

    def get_train_dataloader(self) -> Any:
        return prepare(self.accelerator, PrefetchLoader.wrap(super().get_train_dataloader()))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return prepare(self.accelerator, PrefetchLoader.wrap(super().get_eval_dataloader(eval_dataset)))


def made(kind: type[Noting], directory: Any, **extra: Any) -> Noting:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    # Dropout draws from torch's generator, from which DataLoader draws its base seeds.
    dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = transformers.BertConfig(**sizes, **dropout, intermediate_size=8)
    settings: dict[str, Any] = {"per_device_train_batch_size": ROWS, "num_train_epochs": EPOCHS, "save_steps": 2}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(str(directory), seed=5, **(settings | quiet | extra))
    datasets = {"train_dataset": Texts(), "eval_dataset": Texts(), "data_collator": padded}
    return kind(model=transformers.BertForSequenceClassification(config), args=arguments, **datasets)
