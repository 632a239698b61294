import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import TensorDataset

loader = PrefetchLoader(TensorDataset(torch.arange(100)), batch_size=10)
for _ in range(3):
    assert len(list(loader)) == 10
