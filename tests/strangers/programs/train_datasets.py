"""Trains on datasets of Hugging Face's library, from files of its formats, as tables and as streams."""

import itertools
import json
import pathlib

import datasets
import numpy as np
import torch
from datasets.distributed import split_dataset_by_node
from PIL import Image
from torch.utils.data import DataLoader

datasets.disable_progress_bars()
VOCABULARY = "abcdefghij"


def write_files():
    """A table of thirty texts as JSON lines, four parts of them as parquet and JSON, and pictures in folders."""
    folder = pathlib.Path("data")
    for label in ("dark", "light"):
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(4):
            pixels = np.full((8, 8, 3), 20 * number + 128 * (label == "light"), np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / label / f"{number}.png")
    texts = [{"text": VOCABULARY[: 1 + row % 9], "label": row % 2, "row": row} for row in range(30)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    for shard in range(4):
        rows = datasets.Dataset.from_list(texts[shard * 7 : shard * 7 + 7])
        rows.to_parquet(str(folder / f"rows-{shard}.parquet"))
        rows.to_json(str(folder / f"rows-{shard}.jsonl"))


def loaded(kind, files, **options):
    return datasets.load_dataset(kind, data_files=files, split="train", cache_dir="cache", **options)


def tokenized(row):
    return {"ids": [VOCABULARY.index(letter) for letter in row["text"]]}


def padded(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True, padding_value=-1)
    return {"ids": ids, "label": torch.stack([row["label"] for row in rows])}


def plain(batch):
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in batch.items()}


def trained():
    """Texts as tensors: mapped, split and padded; two epochs and a validation after each, a prediction at the end."""
    table = loaded("json", "data/texts.jsonl").map(tokenized, remove_columns="text").with_format("torch")
    parts = table.train_test_split(test_size=8, seed=1)
    training = DataLoader(parts["train"], batch_size=4, num_workers=2, collate_fn=padded)
    validation = DataLoader(parts["test"], batch_size=4, collate_fn=padded)
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(11, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(2):
        model.train()
        for batch in training:
            loss = torch.nn.functional.cross_entropy(model(batch["ids"] + 1), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        model.eval()
        with torch.no_grad():
            found += [torch.nn.functional.cross_entropy(model(b["ids"] + 1), b["label"]).item() for b in validation]
    with torch.no_grad():
        found.append([model(batch["ids"] + 1).argmax(1).tolist() for batch in validation])
    return found


def of_tables():
    """Formats and views of tables, two epochs of each; the second of one that was given another transform."""
    table = loaded("json", "data/texts.jsonl")
    pictures = loaded("imagefolder", "data/pictures/**")
    kinds = {
        "python": table,
        "numpy": table.with_format("numpy", columns=["row", "label"]),
        "chosen": table.filter(lambda row: row["label"] == 1).select(range(9)).with_format("torch", columns=["row"]),
        "shuffled": table.shuffle(seed=3).with_format("torch", columns=["row"]),
        "sharded": split_dataset_by_node(table, rank=1, world_size=2).select_columns("row").with_format("torch"),
        "joined": datasets.interleave_datasets([table, table.select(range(5))]).select_columns("row"),
        "pictures": pictures.with_format("torch"),
    }
    found = {}
    for name, data in kinds.items():
        loader = DataLoader(data, batch_size=4, num_workers=1)
        found[name] = [[plain(batch) for batch in loader] for _ in range(2)]
    for factor in (2, 3):
        table.set_transform(lambda rows, factor=factor: {"row": [factor * row for row in rows["row"]]})
        found[f"times {factor}"] = [plain(batch) for batch in DataLoader(table, batch_size=8)]
    return found


def transformed_anew():
    """One loader, whose dataset gets another transform between its epochs."""
    table = loaded("json", "data/texts.jsonl")
    loader = DataLoader(table, batch_size=8, num_workers=1)
    found = []
    for factor in (2, 3):
        table.set_transform(lambda rows, factor=factor: {"row": [factor * row for row in rows["row"]]})
        found.append([plain(batch) for batch in loader])
    return found


def of_streams():
    """Files that are read as they come, dealt to workers by shards; shuffled by a seed and the epoch."""
    stream = loaded("parquet", "data/rows-*.parquet", streaming=True).select_columns(["row", "label"])
    kinds = {
        "formatted": stream.with_format("torch"),
        "mapped": stream.map(lambda row: {"twice": 2 * row["row"]}).filter(lambda row: row["row"] % 3),
        "cut": stream.skip(3).take(9),
        "of a table": loaded("json", "data/texts.jsonl").select_columns("row").to_iterable_dataset(num_shards=3),
        "by rank": split_dataset_by_node(stream, rank=0, world_size=2).with_format("torch"),
    }
    found = {}
    for workers, (name, data) in enumerate(kinds.items()):
        loader = DataLoader(data, batch_size=4, num_workers=workers % 3)
        found[name] = [[plain(batch) for batch in loader] for _ in range(2)]
    # Of JSON: the library sleeps for seconds at the end of parquet files that it has shuffled.
    lines = loaded("json", "data/rows-*.jsonl", streaming=True).select_columns(["row", "label"])
    shuffled = lines.shuffle(seed=5, buffer_size=6).with_format("torch")
    loader = DataLoader(shuffled, batch_size=4, num_workers=2)
    found["shuffled"] = []
    for epoch in range(3):
        shuffled.set_epoch(epoch)
        found["shuffled"].append([plain(batch) for batch in loader])
    return found


def broken_off_and_resumed():
    """A stream that goes on from its state in a new run, in one process."""
    stream = loaded("parquet", "data/rows-*.parquet", streaming=True).select_columns("row")
    found = [plain(batch) for batch in itertools.islice(DataLoader(stream, batch_size=4, num_workers=2), 3)]
    walked = iter(stream)
    for _ in range(10):
        next(walked)
    state = stream.state_dict()
    again = loaded("parquet", "data/rows-*.parquet", streaming=True).select_columns("row")
    again.load_state_dict(state)
    return found + [plain(batch) for batch in DataLoader(again, batch_size=4)]


if __name__ == "__main__":
    write_files()
    parts = (trained, of_tables, transformed_anew, of_streams, broken_off_and_resumed)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
