"""Trains a small network on random pictures: your own program takes its place in the two YAML files."""

from __future__ import annotations

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import TensorDataset


def main() -> None:
    """Trains for three epochs, and says what is left to learn."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(1000, 3, 32, 32), torch.randint(0, 10, (1000,)))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with PrefetchLoader(dataset, batch_size=64, shuffle=True, num_workers=2, stream="train") as loader:
        for epoch in range(3):
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
