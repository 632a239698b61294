"""The doctor finds what killed daemons left, removes what nobody uses, and touches nothing else."""

from __future__ import annotations

import json
import os
import signal

import pytest
from prefetchd_client import PrefetchLoader

from tests.contract.declared_daemons import ram_disk
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import is_gone, stream_when, until


def leftovers(daemon, *arguments):
    """(exit code, the finding) about this daemon's socket: what others have left may be another test's."""
    done = daemon.command("doctor", "--json", "--socket", str(daemon.socket), *arguments, check=False)
    found = json.loads(done.stdout)
    assert found["doctor_version"] == 1
    return done.returncode, next(each for each in found["checks"] if each["check"] == "leftovers")


def killed_with_a_ring(daemon):
    """A daemon that was killed, and the ring of a trainer that is gone."""
    daemon.start("--workers", "1")
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=6, stream="left") as loader:
        next(iter(loader))
        stream_when(daemon, "left", lambda stream: stream["consumers"][0].get("yielded") == 1)
    stream_when(daemon, "left", lambda stream: stream["lingering"])
    kill(daemon)


def kill(daemon):
    # Forks of living trainers wait for the next daemon.
    processes = [each.pid for each in daemon.processes() if each.name() != "prefetchd-zyg"]
    os.kill(daemon.pid, signal.SIGKILL)
    until(lambda: all(map(is_gone, processes)), "the daemon and its workers are gone")


def test_what_a_killed_daemon_left_is_found_and_removed(daemon):
    killed_with_a_ring(daemon)
    left = daemon.segments()
    assert len(left) == 3
    code, finding = leftovers(daemon)
    assert (code, finding["state"]) == (3, "failed")
    assert all(name in finding["found"] for name in [*left, str(daemon.socket)])
    assert finding["fix"] == "prefetchd doctor --fix"
    assert daemon.segments() == left
    code, finding = leftovers(daemon, "--fix")
    assert all(name in finding["found"] for name in [*left, str(daemon.socket)])
    assert daemon.segments() == []
    assert not daemon.socket.exists()
    assert not daemon.paths.lock.exists()
    assert "none" in leftovers(daemon)[1]["found"] or daemon.paths.instance not in leftovers(daemon)[1]["found"]


@pytest.mark.parametrize("told_by", ["the configuration", "the status segment", "the mounts"])
def test_a_ring_on_a_ram_disk_is_found_and_removed(daemon, tmp_path, told_by):
    with ram_disk() as disk:
        # Two directories deep, nobody looks who was not told.
        directory = disk if told_by == "the mounts" else disk / "inner"
        directory.mkdir(exist_ok=True)
        config = tmp_path / "streams.toml"
        declared = f'dataset = "tests.scenario.declared_datasets:labelled"\nstore = {{ram_disk = "{directory}"}}\n'
        config.write_text(f"[streams.left]\n{declared}buffer = 4\n")
        daemon.start("--config", str(config), "--workers", "1")
        (ring,) = until(lambda: list(directory.iterdir()), "the ring is made")
        stream_when(daemon, "left", lambda stream: stream["ring"])
        kill(daemon)
        if told_by != "the status segment":
            os.unlink("/dev/shm" + daemon.paths.status_segment)
        asked = ["--config", str(config)] if told_by == "the configuration" else []
        code, finding = leftovers(daemon, *asked)
        assert code == 3
        assert str(ring) in finding["found"]
        assert ring.exists()
        assert str(ring) in leftovers(daemon, *asked, "--fix")[1]["found"]
        assert not ring.exists()


def test_a_ring_on_a_ram_disk_that_is_used_is_left_alone(daemon, tmp_path):
    with ram_disk() as disk:
        config = tmp_path / "streams.toml"
        declared = f'dataset = "tests.scenario.declared_datasets:labelled"\nstore = {{ram_disk = "{disk}"}}\n'
        config.write_text(f"[streams.used]\n{declared}buffer = 4\n")
        daemon.start("--config", str(config), "--workers", "1")
        (ring,) = until(lambda: list(disk.iterdir()), "the ring is made")
        assert str(ring) not in leftovers(daemon, "--config", str(config), "--fix")[1]["found"]
        assert ring.exists()


def test_a_configuration_that_cannot_be_used_is_a_finding(daemon, tmp_path):
    done = daemon.command("doctor", "--json", "--config", str(tmp_path / "none"), check=False)
    assert done.returncode == 3
    (finding,) = [each for each in json.loads(done.stdout)["checks"] if each["check"] == "configuration"]
    assert finding["state"] == "failed"
    assert str(tmp_path / "none") in finding["found"]


def test_a_directory_that_the_configuration_names_is_looked_at(daemon, tmp_path):
    config, missing = tmp_path / "streams.toml", tmp_path / "none"
    config.write_text(f'[streams.one]\ndataset = "a:b"\nbuffer = 4\nstore = {{ram_disk = "{missing}"}}\n')
    done = daemon.command("doctor", "--json", "--config", str(config), check=False)
    (finding,) = [each for each in json.loads(done.stdout)["checks"] if each["check"] == f"store {missing}"]
    assert (done.returncode, finding["state"]) == (3, "failed")
    assert str(missing) in finding["fix"]


def test_what_others_left_is_found_unless_a_socket_is_asked_for(daemon, tmp_path):
    killed_with_a_ring(daemon)
    left = daemon.segments()
    other = str(tmp_path / "other.sock")
    for arguments, is_found in ([], True), (["--socket", other], False), (["--socket", other, "--fix"], False):
        said = daemon.command("doctor", *arguments, check=False).stdout
        assert all((name in said) is is_found for name in left)
    assert daemon.segments() == left
    leftovers(daemon, "--fix")


def test_what_a_look_finds_the_next_daemon_adopts(daemon):
    killed_with_a_ring(daemon)
    leftovers(daemon)
    daemon.start()
    stream_when(daemon, "left", lambda stream: stream["ring"])
    assert daemon.paths.instance not in leftovers(daemon)[1]["found"]


def test_a_daemon_that_runs_and_its_rings_are_left_alone(daemon):
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=6, stream="used") as loader:
        iterator = iter(loader)
        next(iterator)
        # The fork writes the program for others when it has told its fingerprint.
        before = until(lambda: len(found := daemon.segments()) == 3 and found, "the program is there")
        _, finding = leftovers(daemon, "--fix")
        assert daemon.paths.instance not in finding["found"]
        assert daemon.segments() == before
        daemon.paths.lock.unlink()
        leftovers(daemon, "--fix")
        assert daemon.segments() == before
        assert daemon.socket.exists()
        for _ in range(20):
            next(iterator)


def test_a_ring_that_a_living_trainer_holds_outlives_the_doctor(daemon):
    """Its daemon was killed; the next one adopts the ring, and the number of daemons goes on."""
    daemon.start("--workers", "1")
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=6, stream="held") as loader:
        iterator = iter(loader)
        next(iterator)
        (ring,) = [name for name in daemon.segments() if "-ring-" in name]
        kill(daemon)
        leftovers(daemon, "--fix")
        assert ring in daemon.segments()
        daemon.start("--workers", "1")
        for _ in range(20):
            next(iterator)
        found = json.loads(daemon.command("status", "--json").stdout)
        assert found["daemon"]["generation"] == 2
        assert found["streams"][0]["ring"]["segment"] == "/" + ring
