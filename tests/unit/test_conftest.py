"""What the whole run is checked for, by runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NEEDS_ROOT, PACKAGES_VARIABLE

ROOT = Path(__file__).parents[2]

LEAVES = """
import subprocess
from pathlib import Path
from tests.conftest import Daemon

KEPT = []

def test_leaves(tmp_path):
    daemon = Daemon(tmp_path)
    quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
    {leave}
"""

CHILD = "KEPT.append(subprocess.Popen(['cat'], stdin={end}, **quiet))"
ORPHAN = "subprocess.run('{{ cat <&3 & }} 3<&0', shell=True, stdin={end}, env=daemon.environment, **quiet)"
SEGMENT = f"segment-of-{os.getpid()}"

LEFT = {
    "socket": ("daemon.socket.touch()", "files left behind"),
    "lock": ("daemon.paths.lock.touch()", "files left behind"),
    "start lock": ("daemon.paths.start_lock.touch()", "files left behind"),
    "segment": (
        f"open('/dev/shm' + daemon.paths.segment_name('ring', '{SEGMENT}'), 'w').close()",
        "segments left behind",
    ),
    "child": (CHILD, "processes left behind: [['cat']]"),
    "orphan": (ORPHAN, "processes left behind: [['cat']]"),
}


def run(directory: Path, text: str, *, end: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on a file with that text. `end` is a descriptor that it inherits."""
    file = directory / "test_small.py"
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rA"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(directory), str(file)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        pass_fds=() if end is None else (end,),
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize(("leave", "told"), LEFT.values(), ids=LEFT)
def test_what_a_test_leaves_behind_fails_the_run(tmp_path, leave, told):
    read, write = os.pipe()
    try:
        done = run(tmp_path, LEAVES.format(leave=leave.format(end=read)), end=read)
    finally:
        # What waits for it to end ends with it.
        os.close(read)
        os.close(write)
        for segment in Path("/dev/shm").glob(f"*{SEGMENT}"):
            segment.unlink()
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert told in done.stdout


def test_a_test_that_leaves_nothing_passes(tmp_path):
    done = run(tmp_path, LEAVES.format(leave="daemon.paths.log.parent.mkdir()"))
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


SKIPS = {
    "in a module": "import pytest\npytest.importorskip('no_such_package')\n\ndef test_it(): pass\n",
    "in a test": "import pytest\n\ndef test_it():\n    pytest.importorskip('no_such_package')\n",
    "by name": "import pytest\n\ndef test_it():\n    pytest.skip('no_such_package is not installed')\n",
}


@pytest.mark.parametrize("text", SKIPS.values(), ids=SKIPS)
def test_a_missing_package_skips_a_test_but_where_all_are_to_be_there(tmp_path, text):
    skipped = run(tmp_path, text, **{PACKAGES_VARIABLE: ""})
    assert "1 skipped" in skipped.stdout, skipped.stdout + skipped.stderr
    failed = run(tmp_path, text, **{PACKAGES_VARIABLE: "all"})
    assert failed.returncode != 0
    assert f"({PACKAGES_VARIABLE}=all)" in failed.stdout


def test_other_reasons_to_skip_stay(tmp_path):
    done = run(
        tmp_path, "import pytest\n\ndef test_it():\n    pytest.skip('no right to')\n", **{PACKAGES_VARIABLE: "all"}
    )
    assert (done.returncode, "1 skipped" in done.stdout) == (0, True), done.stdout + done.stderr


def test_attacks_that_want_a_second_user_are_skipped_for_others_than_root_and_counted(tmp_path):
    text = "import os\nos.geteuid = lambda: {uid}\nfrom tests.attacks.another_user import as_root\n"
    text += "{then}\n@as_root\ndef test_one(): pass\n@as_root\ndef test_other(): pass\n"
    told = f"2 attacks were skipped: {NEEDS_ROOT}"
    done = run(tmp_path, text.format(uid=1, then=""), **{PACKAGES_VARIABLE: "all"})
    assert (done.returncode, "2 skipped" in done.stdout, told in done.stdout) == (0, True, True), done.stdout
    done = run(tmp_path, text.format(uid=0, then=""), **{PACKAGES_VARIABLE: "all"})
    assert (done.returncode, "2 passed" in done.stdout, told in done.stdout) == (0, True, False), done.stdout
    # Whatever skips them where root runs them.
    done = run(tmp_path, text.format(uid=1, then="os.geteuid = lambda: 0"), **{PACKAGES_VARIABLE: "all"})
    assert (done.returncode, "2 errors" in done.stdout) == (1, True), done.stdout


def test_make_test_wants_all_packages():
    assert f"{PACKAGES_VARIABLE}=all $(BIN)/python -m pytest" in (ROOT / "Makefile").read_text()
