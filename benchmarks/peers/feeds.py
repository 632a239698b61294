"""FEEDS names what batches a contestant is asked for, and Data where what they are made of lies.

Imported by the contestants' processes too, whose venvs have torch and their own packages only.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

WORKERS = 2
"""Worker processes, or threads, of each contestant."""
CROP = 224
PREPARED_SIDE = 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PICTURES, TOKEN_ROWS, TOKENS_A_ROW, VOCABULARY = 2000, 100_000, 128, 50_257
VALIDATED = range(0, 1920, 3)
"""Which pictures validation looks at: ten batches of 64."""


@dataclasses.dataclass(frozen=True)
class Feed:
    """What each batch is to be: the shape and type of its first tensor, and whether labels come with it."""

    name: str
    batch_size: int
    shape: tuple[int, ...]
    dtype: str
    samples: int
    has_labels: bool = True

    def of(self, batch_size: int) -> Feed:
        return dataclasses.replace(self, batch_size=batch_size)


_PICTURE = (3, CROP, CROP)
FEEDS = {
    feed.name: feed
    for feed in (
        Feed("jpeg-bytes", 64, _PICTURE, "uint8", PICTURES),
        Feed("jpeg-floats", 64, _PICTURE, "float32", PICTURES),
        Feed("jpeg-validation", 64, _PICTURE, "uint8", len(VALIDATED)),
        Feed("prepared", 64, _PICTURE, "uint8", PICTURES),
        Feed("tokens", 512, (TOKENS_A_ROW,), "int64", TOKEN_ROWS, has_labels=False),
    )
}


@dataclasses.dataclass(frozen=True)
class Data:
    """Where things lie: the JPEGs by class, and a directory for what is made of them."""

    pictures: Path
    made: Path

    @property
    def prepared(self) -> Path:
        """PICTURES x 3 x 256 x 256 bytes, for numpy."""
        return self.made / "prepared.npy"

    @property
    def labels(self) -> Path:
        return self.made / "labels.npy"

    @property
    def tokens(self) -> Path:
        """TOKEN_ROWS x TOKENS_A_ROW numbers of two bytes, for numpy."""
        return self.made / "tokens.npy"

    def own(self, contestant: str, feed: str) -> Path:
        """A contestant's own format of what a feed is made of: nobody else writes there."""
        return self.made / contestant / feed


def listed(pictures: Path) -> list[tuple[Path, int]]:
    """Returns all JPEGs with their class, in the order of torchvision's ImageFolder."""
    classes = sorted(each for each in pictures.iterdir() if each.is_dir())
    return [(path, number) for number, each in enumerate(classes) for path in sorted(each.glob("*.jpg"))]


def listed_for(feed: str, pictures: Path) -> list[tuple[Path, int]]:
    """Returns the JPEGs that a feed is made of."""
    found = listed(pictures)
    return [found[number] for number in VALIDATED] if feed == "jpeg-validation" else found
