"""Two copies of prefetchd on one machine: halves of two do not work together, and say so; a daemon of another version
that speaks the same protocol serves, and is named once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import prefetchd_client
import pytest
from prefetchd_client.own_version import VERSION

import prefetchd

ROOT = Path(prefetchd.__file__).parents[1]
CLIENT = Path(prefetchd_client.__file__).parents[1]
OTHER = "0.0.9"

TRAINER = """
import sys, warnings
from prefetchd_client import PrefetchLoader
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in ("first", "second"):
        with PrefetchLoader([float(index) for index in range(20)], batch_size=4, stream=name) as loader:
            found = [batch.tolist() for batch in loader]
        print("batches", found == [[4.0 * k + row for row in range(4)] for k in range(5)])
    for each in caught:
        print("warned", each.message, each.filename)
"""

pytestmark = pytest.mark.executed


@pytest.fixture
def copy(tmp_path):
    """Another copy of the tree, of version 0.0.9."""
    for package, source in (("prefetchd", ROOT), ("prefetchd_client", CLIENT)):
        shutil.copytree(source / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("prefetchd/__init__.py", "prefetchd_client/own_version.py"):
        path = tmp_path / "copy" / file
        path.write_text(path.read_text().replace(f'"{VERSION}"', f'"{OTHER}"'))
    return tmp_path / "copy"


def run(code, *paths, environment=None, cwd="/"):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**(environment or os.environ), "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_both_packages_are_of_one_version():
    assert prefetchd_client.__version__ == prefetchd.__version__


def test_an_installed_client_beside_a_clone_s_prefetchd_is_an_error_that_names_both(copy, tmp_path):
    """As where a script runs in a clone's directory, which has the one package and not the other."""
    (tmp_path / "installed").mkdir()
    (copy / "prefetchd_client").rename(tmp_path / "installed" / "prefetchd_client")
    done = run("import prefetchd_client", tmp_path / "installed", cwd=ROOT)
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith(
        f"ImportError: prefetchd_client {OTHER} in {tmp_path / 'installed' / 'prefetchd_client'} was "
    )
    assert f"imported with prefetchd {VERSION} in {ROOT / 'prefetchd'}; allowed: the same version" in told
    assert "take such a clone out of PYTHONPATH" in told


def test_a_clone_s_client_beside_an_installed_prefetchd_is_an_error_too(copy, tmp_path):
    (copy / "prefetchd").rename(tmp_path / "prefetchd")
    done = run("import prefetchd_client", tmp_path, CLIENT)
    assert done.returncode == 1
    assert (
        f"prefetchd_client {VERSION} in {CLIENT / 'prefetchd_client'} was imported with prefetchd {OTHER}"
        in done.stderr
    )


def test_a_whole_copy_is_imported_without_a_word(copy):
    done = run("import prefetchd_client; print(prefetchd_client.__version__)", copy)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{OTHER}\n", "")


def start_other(daemon, copy):
    """Starts the copy's daemon: the current directory comes before PYTHONPATH."""
    command = [sys.executable, "-m", "prefetchd", "run", "--detach"]
    environment = {**daemon.environment, "PYTHONPATH": str(copy)}
    subprocess.run(command, env=environment, cwd=copy, capture_output=True, check=True, timeout=60)
    assert f"prefetchd {OTHER}" in daemon.command("status").stdout


def test_a_daemon_of_another_version_serves_and_is_named_once(daemon, copy):
    start_other(daemon, copy)
    done = run(TRAINER, ROOT, CLIENT, environment=daemon.environment)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:2] == ["batches True", "batches True"]
    (warned,) = said[2:]
    assert warned.startswith(f"warned the daemon is prefetchd {OTHER}, this client {VERSION}: ")
    assert "`prefetchd restart`" in warned
    assert warned.endswith(" <string>"), "it is shown at the line that made the loader"


REPLACED = """
import os, sys, warnings
from prefetchd_client import PrefetchLoader
warnings.simplefilter("error")
with PrefetchLoader([float(index) for index in range(4000)], batch_size=4, buffer=8) as loader:
    iterator = iter(loader)
    taken = [next(iterator).tolist()]
    print("begun", flush=True)
    sys.stdin.readline()
    taken += [batch.tolist() for batch in iterator]
print("all", taken == [[4.0 * k + row for row in range(4)] for k in range(1000)])
"""


def test_a_running_trainer_goes_on_with_a_daemon_of_another_version_and_is_told_on_stderr(daemon, copy):
    daemon.start()
    with subprocess.Popen(
        [sys.executable, "-c", REPLACED],
        env=daemon.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "begun\n"
        daemon.command("stop", "--keep")
        start_other(daemon, copy)
        out, err = trainer.communicate("go on\n", timeout=100)
    assert (trainer.returncode, out) == (0, "all True\n"), err
    assert len(re.findall(f"prefetchd: the daemon is prefetchd {re.escape(OTHER)}, this client {VERSION}", err)) == 1
