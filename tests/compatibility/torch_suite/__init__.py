"""PyTorch's own tests of DataLoader, run with PrefetchLoader in its place: by hand, and of a file that you bring.

    python -m tests.compatibility.torch_suite PATH/TO/test_dataloader.py

The file is test/test_dataloader.py of pytorch/pytorch, of the version of torch that is installed or near it. torch's
helpers for tests need the package expecttest.
"""
