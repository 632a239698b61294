import torch


class Images:
    """Small ones: 800 batches wait before a job begins."""

    def __init__(self, root):
        self.root = root

    def __len__(self):
        return 640

    def __getitem__(self, index):
        return {"image": torch.full((3, 2, 2), index % 256, dtype=torch.uint8), "label": index % 10}


def make_dataset(root):
    return Images(root)
