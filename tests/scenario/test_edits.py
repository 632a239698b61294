"""A project is edited between two runs: the next run gets new batches, never those of the old ring; an unchanged
project finds its ring again. Every run is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.scenario.waiting import stream_when

# Sample i is i + helper, times the transform's argument; collate adds its own, and the package its version's.
FILES = {
    "dataset.py": """
        from helper import offset
        from installed import shift

        class Scale:
            def __init__(self, factor):
                self.factor = factor

            def __call__(self, value):
                return self.factor * value

        class Data:
            def __init__(self, transform):
                self.transform = transform

            def __len__(self):
                return 40

            def __getitem__(self, index):
                return self.transform(index + offset()) + shift()
    """,
    "helper.py": """
        def offset():
            return 0
    """,
    "collate.py": """
        import torch

        def collate(samples):
            return torch.tensor(samples)
    """,
    "train.py": """
        import json, sys
        from collate import collate
        from dataset import Data, Scale
        from prefetchd_client import PrefetchLoader

        data = Data(Scale(factor=1))
        with PrefetchLoader(data, 4, collate_fn=collate, buffer=6, stream="project") as loader:
            print(json.dumps([loader.fingerprint, next(iter(loader)).tolist()]))
    """,
    "site-packages/installed.py": """
        __version__ = "1.0"

        def shift():
            return 0
    """,
}

EDITS = {
    "dataset module": ("dataset.py", "index + offset()", "10 + index + offset()", [10, 11, 12, 13]),
    "helper module": ("helper.py", "return 0", "return 100", [110, 111, 112, 113]),
    "transform argument": ("train.py", "factor=1", "factor=10", [1100, 1110, 1120, 1130]),
    "collate function": ("collate.py", "tensor(samples)", "tensor(samples).neg()", [-1100, -1110, -1120, -1130]),
    "package version": (
        "site-packages/installed.py",
        '"1.0"\n\ndef shift():\n    return 0',
        '"1.1"\n\ndef shift():\n    return 1000',
        [-2100, -2110, -2120, -2130],
    ),
}


class Project:
    def __init__(self, place: Path, daemon) -> None:
        self.place = place
        self._daemon = daemon
        self._runs = 0
        (place / "site-packages").mkdir(parents=True)
        for name, source in FILES.items():
            (place / name).write_text(textwrap.dedent(source).lstrip())

    def edit(self, name: str, old: str, new: str) -> None:
        source = (self.place / name).read_text()
        assert source.count(old) == 1
        (self.place / name).write_text(source.replace(old, new))

    def run(self) -> tuple[str, list[int], str]:
        """The fingerprint, the first batch, and the ring's segment of one run."""
        self._runs += 1
        path = [str(self.place / "site-packages"), *filter(None, sys.path)]
        done = subprocess.run(
            [sys.executable, str(self.place / "train.py")],
            env=self._daemon.environment | {"PYTHONPATH": ":".join(path), "PYTHONHASHSEED": str(self._runs)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        fingerprint, batch = json.loads(done.stdout)
        stream = stream_when(
            self._daemon,
            "project",
            lambda stream: stream["fingerprint"] == fingerprint and stream["ring"] is not None,
            "its ring is there",
        )
        return fingerprint, batch, stream["ring"]["segment"]


@pytest.mark.slow
@pytest.mark.timeout(300)  # torch is imported again and again
def test_every_edit_gives_a_new_stream_and_what_is_unchanged_finds_its_ring(daemon, tmp_path):
    daemon.start()
    project = Project(tmp_path / "project", daemon)
    before = project.run()
    assert before[1] == [0, 1, 2, 3]
    for what, (name, old, new, batch) in EDITS.items():
        project.edit(name, old, new)
        fingerprint, found, segment = project.run()
        assert found == batch, f"{what}: batches of the old one are served"
        assert fingerprint != before[0], what
        assert segment != before[2], what
        rings = [f"/{each}" for each in daemon.segments() if "-ring-" in each]
        assert rings == [segment], f"{what}: the old ring is still there"
        before = (fingerprint, found, segment)
    assert daemon.paths.log.read_text().count('"stream replaced"') == len(EDITS)
    assert project.run() == before, "unchanged, it finds its ring, whatever the order of sets"
    assert daemon.paths.log.read_text().count('"stream replaced"') == len(EDITS)
