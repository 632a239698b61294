"""docs/arguments.md has every argument, each under the class that it is of."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

TEXT = (Path(__file__).parents[3] / "docs" / "arguments.md").read_text("utf-8")


def parameters(kind):
    return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]


def test_every_argument_has_its_row():
    theirs, ours = (re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in TEXT.split("## PrefetchLoader's own"))
    assert theirs == parameters(DataLoader)
    assert theirs + sorted(ours) == parameters(DataLoader) + sorted(set(parameters(PrefetchLoader)) - set(theirs))


def test_each_argument_of_ours_is_described_and_found_under_its_name():
    # Frameworks make a loader anew from another's attributes. `stream` is the other's, `transform` is in the dataset.
    ours = {*parameters(PrefetchLoader)} - {*parameters(DataLoader)}
    described = re.findall(r"^    (\w+) \(.+?\): \S", inspect.getdoc(PrefetchLoader) or "", re.MULTILINE)
    assert sorted(ours) == sorted(described)
    assigned = re.findall(r"self\.(\w+)", inspect.getsource(PrefetchLoader.__init__))
    assert ours - {"stream", "transform"} <= {*assigned}
