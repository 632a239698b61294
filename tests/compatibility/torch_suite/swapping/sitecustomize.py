"""Imported by each interpreter that has this directory in PYTHONPATH, before its program: puts PrefetchLoader in
DataLoader's place, so that processes which tests spawn have it too."""

from __future__ import annotations

import torch.utils.data.dataloader
from prefetchd_client import PrefetchLoader

torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = PrefetchLoader  # type: ignore[misc]
