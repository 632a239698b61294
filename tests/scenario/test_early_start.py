"""Where nothing is forked from the trainer, what its workers need is imported from `import prefetchd_client` on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scenario.waiting import until

pytestmark = pytest.mark.executed

SCRIPT = """
import sys
import prefetchd_client
print("imported", flush=True)
sys.stdin.readline()
with prefetchd_client.PrefetchLoader([float(index) for index in range(12)], batch_size=4) as loader:
    print([batch.tolist() for batch in loader], flush=True)
    sys.stdin.readline()
"""


def environment_zygotes(daemon) -> list[int]:
    return [each.pid for each in daemon.processes() if each.name() == "prefetchd-env"]


@pytest.mark.parametrize("runs", [True, False], ids=["a daemon runs", "no daemon runs"])
def test_the_zygote_of_the_first_loader_is_there_before_it(daemon, runs):
    if runs:
        daemon.start()
    environment = daemon.environment | {"PREFETCHD_START": "exec"}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdin=-1, stdout=-1, text=True) as trainer:
        assert trainer.stdout.readline() == "imported\n"
        early = until(lambda: environment_zygotes(daemon), "it is started")
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]\n"
        assert environment_zygotes(daemon) == early, "it serves the loader"
        trainer.stdin.write("\n")


def test_importing_starts_nothing_where_workers_are_forks(daemon):
    done = subprocess.run(
        [sys.executable, "-c", "import prefetchd_client"], env=daemon.environment, capture_output=True, check=True
    )
    assert not done.stderr
    assert not daemon.socket.exists()
