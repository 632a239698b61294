"""prefetchd: a data-loading daemon for PyTorch."""

__version__ = "0.1.0"
