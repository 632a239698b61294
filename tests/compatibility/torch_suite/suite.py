"""The tests of a file, with one class or the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.compatibility.torch_suite.outcomes import Outcome

SWAPPING = Path(__file__).parent / "swapping"
ROOT = Path(__file__).parents[3]


class Suite:
    """`names` are all tests. With `swapped`, DataLoader is PrefetchLoader: in the file, in whatever it imports, and in
    every process that it starts."""

    def __init__(self, file: Path, *, swapped: bool, limit_s: float) -> None:
        reading, writing = os.pipe()
        paths = [str(SWAPPING)] * swapped + [str(ROOT)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.compatibility.torch_suite.serving", str(file), str(writing), str(limit_s)],
            # torch's file leaves out what takes minutes, unless it is told not to.
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTORCH_TEST_WITH_SLOW="1"),
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
        )
        os.close(writing)
        self._answers = os.fdopen(reading)
        self.names: list[str] = self._answer()

    def __enter__(self) -> Suite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.terminate()
        self._process.communicate()
        self._answers.close()

    def run(self, name: str) -> Outcome:
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        return Outcome(name, **self._answer())

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            self._process.communicate()
            sys.exit("the process that has the tests is gone: what it printed is above")
        return json.loads(line)
