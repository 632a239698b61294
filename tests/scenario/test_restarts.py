"""A daemon ends and leaves its rings for the next one: `stop --keep`, `restart`, SIGUSR1. As after a kill nothing that
is ready is made again, and a trainer goes on meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.status.snapshot import read_report
from prefetchd.wire.segment_layout import LAYOUT_VERSION
from tests.scenario.datasets import Numbers
from tests.scenario.foreground import ENDS_WITHIN_S, foreground
from tests.scenario.lookback_trainer import BATCH, Told
from tests.scenario.test_daemon_dies import full, kill, name_of
from tests.scenario.test_declared_streams import NUMBERS
from tests.scenario.waiting import fills_no_more, is_gone, stream_when, until

ADOPTED = "ring adopted"
RESTARTED = re.compile(r"restarted\nkept: (\S+)\n")


def restart(daemon):
    done = daemon.command("restart")
    assert RESTARTED.fullmatch(done.stdout), done.stdout


def stop_keeping(daemon):
    done = daemon.command("stop", "--keep")
    assert "its rings are kept" in done.stdout


def signal_keeping(daemon):
    pid = daemon.pid
    os.kill(pid, signal.SIGUSR1)
    until(lambda: is_gone(pid), "the daemon is gone")


def is_served(daemon) -> bool:
    return read_report(daemon.paths).state == "running"


WAYS = [restart, stop_keeping, signal_keeping, kill]


@pytest.mark.parametrize("end", WAYS, ids=lambda end: end.__name__)
def test_a_trainer_with_a_full_ring_waits_for_none_of_its_batches(daemon, end):
    """A kill is what the others are compared with."""
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=16) as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 15)
        longest_before = loader.stats()["longest_wait_s"]
        end(daemon)
        for step in range(1, 14):
            assert next(iterator)[1][0] == 4 * step
        assert loader.stats()["longest_wait_s"] == longest_before, "none of them was waited for"
        assert [batch[1][0].item() for batch in iterator] == [4 * step for step in range(14, 100)]
        assert loader.stats()["reconnections"] == 1


@pytest.mark.parametrize("end", WAYS, ids=lambda end: end.__name__)
def test_not_one_ready_batch_is_made_again(daemon, tmp_path, end):
    daemon.start()
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=32) as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 31)
        end(daemon)
        if not is_served(daemon):
            daemon.start()
        taken = [next(iterator)[0][0].item() for _ in range(1, 60)]
        assert taken == [BATCH * step for step in range(1, 60)]
        made = Counter(dataset.steps())
        assert {made[step] for step in range(1, 60)} == {BATCH}


def test_a_trainer_without_a_batch_gets_it_from_the_next_daemon(daemon, tmp_path):
    """It waits in next() while the daemon is restarted, again and again."""
    daemon.start()
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=4) as loader:
        iterator = iter(loader)
        first_rows = (batch[0][0].item() for batch in iterator)
        taken = [next(first_rows)]
        full(daemon, loader, 3)
        for restarts in (1, 2, 3):
            command = [sys.executable, "-m", "prefetchd", "restart"]
            begun = subprocess.Popen(command, env=daemon.environment, stdout=subprocess.PIPE, text=True)
            taken += itertools.islice(first_rows, 4)
            said, _ = begun.communicate(timeout=60)
            assert RESTARTED.fullmatch(said)
            # All four may have come of the daemon before; what it had made by then does not reach far.
            while loader.stats()["reconnections"] < restarts:
                taken.append(next(first_rows))
        taken += first_rows
        assert taken == [BATCH * step for step in range(100)]
        assert loader.stats()["reconnections"] == 3


def test_a_ring_whose_trainer_has_ended_is_kept_too(daemon, tmp_path):
    daemon.start()
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=8, stream="left", seed=0) as loader:
        next(iter(loader))
        full(daemon, loader, 7)
    # Full it was before, too: what the next run begins with takes the place of half of what was ahead.
    stream_when(daemon, "left", lambda stream: fills_no_more(stream) and stream["ring"]["ready"] == 8, "all is ready")
    stop_keeping(daemon)
    made = len(dataset.steps())
    assert daemon.paths.lock.exists(), "the number of daemons whose rings are there"
    daemon.start()
    assert read_report(daemon.paths).snapshot["daemon"]["generation"] == 2
    stream_when(daemon, "left", lambda stream: stream["ring"], "it is adopted")
    # A daemon that does not know that the trainer will begin in the ring goes on from its beginning at once.
    (adopted,) = (
        line for line in map(json.loads, daemon.paths.log.read_text().splitlines()) if line["event"] == ADOPTED
    )
    assert adopted["batches"] == 8
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=8, stream="left", seed=0) as loader:
        iterator = iter(loader)
        taken = [next(iterator)[0][0].item() for _ in range(4)]
        assert taken == [BATCH * step for step in range(4)]
        assert not {*range(4)} & {*dataset.steps()[made:]}, "what was ready was there"


def test_a_stop_after_it_drops_everything(daemon):
    """Nothing is left: the fixture looks."""
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        next(iter(loader))
        full(daemon, loader, 7)
        stop_keeping(daemon)
    daemon.start()
    assert daemon.command("stop").stdout == "stopped\n"
    assert not daemon.segments()
    assert not daemon.paths.lock.exists()


def test_without_a_ring_nothing_is_left(daemon):
    daemon.start()
    assert daemon.command("stop", "--keep").stdout == "stopped\n"
    assert not daemon.segments()
    assert not daemon.paths.lock.exists()
    assert daemon.command("stop", "--keep").stdout == f"no daemon on {daemon.socket}\n"


POINTS = ["daemon.stop.begun", "daemon.close.begun", "daemon.keep.childless", "daemon.keep.released"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_on_the_way_it_has_kept_them_as_well(daemon, tmp_path, point):
    dataset = Told(tmp_path / "calls")
    daemon.environment["PREFETCHD_KILL_POINTS"] = point
    daemon.start()
    del daemon.environment["PREFETCHD_KILL_POINTS"]
    pid = daemon.pid
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=16) as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 15)
        os.kill(pid, signal.SIGUSR1)
        until(lambda: is_gone(pid), "it has killed itself")
        assert '"event": "stopped"' not in daemon.paths.log.read_text()
        daemon.start()
        # Not all of the epoch: the next one is filled ahead, and has the same samples.
        assert [next(iterator)[0][0].item() for _ in range(1, 60)] == [BATCH * step for step in range(1, 60)]
        made = Counter(dataset.steps())
        assert {made[step] for step in range(1, 16)} == {BATCH}
        assert loader.stats()["reconnections"] == 1


def test_a_stop_that_comes_while_it_ends_drops_them(daemon):
    """Whoever stops it in order wants them gone, whatever somebody else has asked for before."""
    daemon.start()
    pid = daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        next(iter(loader))
        full(daemon, loader, 7)
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        until(lambda: is_gone(pid), "the daemon is gone")
        assert not [name for name in daemon.segments() if "-ring-" in name]


def test_the_next_one_is_started_the_same_way(daemon, tmp_path):
    config = tmp_path / "streams.toml"
    config.write_text("[daemon]\nmemory = '1GB'\n")
    daemon.start("--workers", "3", "--idle-exit", "1000", "--linger-memory", "64MiB", "--config", str(config))
    before = read_report(daemon.paths).snapshot
    assert before["daemon"]["options"] == {"workers": 3, "idle_exit": 1000.0, "linger_memory": 64 << 20}
    config.write_text("[daemon]\nmemory = 1\n")
    refused = daemon.command("restart", check=False)
    assert refused.returncode == 1
    assert f"{config}:2" in refused.stderr
    assert daemon.pid == before["daemon"]["pid"], "nothing has happened"
    config.write_text("[daemon]\nmemory = '2GB'\n")
    assert daemon.command("restart").stdout == "restarted\n"
    after = read_report(daemon.paths).snapshot
    assert after["daemon"]["pid"] != before["daemon"]["pid"]
    told = ("options", "config", "supervised", "managed", "layouts", "socket", "log")
    assert {name: after["daemon"][name] for name in told} == {name: before["daemon"][name] for name in told}
    assert after["workers"]["asked"] == 3


def test_what_a_trainer_has_started_is_started_as_a_trainer_starts_it(daemon):
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 7)
        restart(daemon)
        options = read_report(daemon.paths).snapshot["daemon"]["options"]
        assert options == {"idle_exit": 900.0, "reset_affinity": True}
        assert len(list(iterator)) == 99


@pytest.mark.parametrize("store", ["shm", "files"])
def test_declared_streams_are_kept_with_their_batches(daemon, tmp_path, store):
    directory = tmp_path / "batches"
    directory.mkdir()
    stored = f"store = {{files = '{directory}'}}\n" if store == "files" else ""
    config = tmp_path / "streams.toml"
    config.write_text(f"[streams.train]\n{NUMBERS}batch_size = 4\nbuffer = 8\n{stored}")
    daemon.environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    daemon.start("--config", str(config))
    before = stream_when(daemon, "train", lambda stream: stream["warm"], "it is filled")
    done = daemon.command("restart")
    assert done.stdout == "restarted\n" + "kept: train\n" * (store == "shm"), "files stay in any case"
    after = stream_when(daemon, "train", lambda stream: stream["warm"], "it is filled again")
    assert after["produced_batches"] == 0, "nothing was made again"
    if store == "shm":
        assert after["ring"]["segment"] == before["ring"]["segment"]


# A restart that dies when the first daemon has ended.
DIES = """
import os, signal, sys
from prefetchd.cli import restart
end = restart.end_daemon

def end_and_die(*paths, **how):
    end(*paths, **how)
    os.kill(os.getpid(), signal.SIGKILL)

restart.end_daemon = end_and_die
from prefetchd.cli.main import main
sys.argv = ["prefetchd", "restart"]
main()
"""


def test_what_a_restart_leaves_is_there_when_it_is_killed_itself(daemon, tmp_path):
    """The lock that keeps trainers from starting a daemon meanwhile goes with it."""
    daemon.start()
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=16) as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 15)
        done = subprocess.run([sys.executable, "-c", DIES], env=daemon.environment, check=False)
        assert done.returncode == -signal.SIGKILL
        assert [next(iterator)[0][0].item() for _ in range(1, 60)] == [BATCH * step for step in range(1, 60)]
        made = Counter(dataset.steps())
        assert {made[step] for step in range(1, 16)} == {BATCH}
        assert loader.stats()["reconnections"] == 1


def test_one_in_the_foreground_is_left_to_whoever_runs_it(daemon):
    with foreground(daemon) as (process, _):
        refused = daemon.command("restart", check=False)
        assert refused.returncode == 1
        assert "runs in the foreground" in refused.stderr
        assert "prefetchd stop --keep" in refused.stderr
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        assert process.wait(ENDS_WITHIN_S) == 0


def test_without_a_daemon_there_is_nothing_to_restart(daemon):
    refused = daemon.command("restart", check=False)
    assert refused.returncode == 1
    assert f"no daemon on {daemon.socket}" in refused.stderr


OTHER_LAYOUT = f"""
import sys
# What is there already has taken the numbers over.
for name in [name for name in sys.modules if name.partition(".")[0] == "prefetchd"]:
    del sys.modules[name]
from prefetchd.wire import segment_layout
segment_layout.LAYOUT_VERSION = {LAYOUT_VERSION + 1}
from prefetchd.cli.main import main
main()
"""


def of_another_layout(daemon, *arguments):
    """`prefetchd` as a later version would be, as far as the layout of rings goes."""
    command = [sys.executable, "-c", OTHER_LAYOUT, *arguments]
    return subprocess.run(command, env=daemon.environment, capture_output=True, text=True, check=False)


def test_another_version_says_before_what_would_be_lost(daemon):
    daemon.start()
    pid = daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="full") as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 7)
        for verb in (["restart"], ["stop", "--keep"]):
            refused = of_another_layout(daemon, *verb)
            assert refused.returncode == 1
            assert f"ring {LAYOUT_VERSION} there, {LAYOUT_VERSION + 1} here" in refused.stderr
            assert daemon.pid == pid, "nothing has happened"
        assert "--force" in of_another_layout(daemon, "restart").stderr
        assert re.search(r"stream 'full': 7 batches ready, [\d.]+ KiB: ", of_another_layout(daemon, "restart").stderr)
        next(iterator)
        assert loader.stats()["reconnections"] == 0
        name = name_of(loader)
    stream_when(daemon, name, lambda stream: stream["lingering"], "its trainer has gone")
    forced = of_another_layout(daemon, "restart", "--force")
    assert forced.stdout == "restarted\nnot kept: full\n"
    assert not [each for each in daemon.segments() if "-ring-" in each]
    assert read_report(daemon.paths).snapshot["daemon"]["layouts"]["ring"] == LAYOUT_VERSION + 1


@pytest.mark.parametrize("end", [restart, stop_keeping, kill], ids=lambda end: end.__name__)
def test_pauses_and_log_level_outlive_a_restart_and_no_kill(daemon, end):
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="held") as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 7)
        daemon.command("pause", "held")
        daemon.command("log-level", "debug")
        end(daemon)
        if not is_served(daemon):
            daemon.start()
        is_held = end is not kill
        stream_when(daemon, "held", lambda stream: stream["ring"] and stream["paused"] == is_held, "it is adopted")
        daemon.command("log-level", "info")
        levels = [json.loads(line) for line in daemon.paths.log.read_text().splitlines() if '"log level"' in line]
        assert levels[-1]["was"] == ("debug" if is_held else "info")
        daemon.command("resume")
        assert [batch[1][0].item() for batch in iterator] == [4 * step for step in range(1, 100)]
