"""`prefetchd config check` and the daemon agree: on the ring that a stream gets, and on what does not fit a small RAM
disk."""

from __future__ import annotations

import os
import re

import pytest

from tests.scenario.small_rooms import in_a_small_room
from tests.scenario.waiting import stream_when

DATASETS = "tests.scenario.declared_datasets"

STREAMS = {
    "rows in bytes": f'dataset = "{DATASETS}:numbers"\nbatch_size = 8\nbuffer = "2MiB"\n',
    "rows by number": f'dataset = "{DATASETS}:numbers"\nbatch_size = 8\nbuffer = 12\n',
    "rows by default": f'dataset = "{DATASETS}:numbers"\nbatch_size = 8\n',
    "whole batches": (
        'dataset = "tests.scenario.bad_datasets:Strings"\ndataset_args = {lengths = [5000, 5000, 5000, 5000, 5000]}\n'
        'batch_size = 4\nbuffer = "2MiB"\n'
    ),
    "files": f'dataset = "{DATASETS}:numbers"\nbatch_size = 8\nbuffer = "2MiB"\nstore = {{files = "DISK"}}\n',
    "ram disk": f'dataset = "{DATASETS}:numbers"\nbatch_size = 8\nbuffer = "2MiB"\nstore = {{ram_disk = "DISK"}}\n',
}


@pytest.mark.parametrize("kind", STREAMS)
def test_the_ring_that_is_told_is_the_one_that_the_daemon_makes(daemon, tmp_path, kind):
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    config = tmp_path / "streams.toml"
    declared = STREAMS[kind].replace("DISK", str(disk))
    config.write_text(f'[streams.train]\n{declared}cwd = "{os.getcwd()}"\n')
    done = daemon.command("config", "check", str(config), check=False)
    assert done.returncode == 0, done.stderr
    (told,) = re.findall(r"; room for (\d+) batches of ", done.stdout)
    daemon.start("--config", str(config))
    found = stream_when(daemon, "train", lambda it: it["ring"] and it["ring"]["slots"] >= int(told), "it has a ring")
    assert found["ring"]["slots"] == int(told)
    # Its own ring, and its own files, are not in its way.
    again = daemon.command("config", "check", str(config), check=False)
    assert again.returncode == 0, again.stderr


SMALL = """
disk, config = (os.path.join(os.environ["PLACE"], name) for name in ("disk", "streams.toml"))
os.mkdir(disk)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", disk], check=True)

def check(text, *options):
    with open(config, "w") as file:
        file.write(text.replace("DISK", disk))
    done = prefetchd("config", "check", *options, config)
    lines = done.stderr.replace(config, "FILE").replace(disk, "DISK").splitlines()
    return done.returncode, " | ".join(line for line in lines if not line.startswith("stream "))

ROWS = 'dataset = "tests.scenario.declared_datasets:numbers"\\ndataset_args = {width = 8000}\\nbatch_size = 8\\n'
ROWS += f'cwd = "{os.environ["CHECKOUT"]}"\\n'
"""


@pytest.fixture
def room(daemon, tmp_path):
    """room(script) runs it where `disk` is a tmpfs of 4 MiB; what it has said."""
    place = tmp_path / "place"
    place.mkdir()
    environment = {**daemon.environment, "PLACE": str(place), "CHECKOUT": os.getcwd()}
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return lambda script: in_a_small_room(SMALL + script, environment)


@pytest.mark.slow
def test_what_a_small_ram_disk_has_no_room_for_is_a_problem(room):
    said = room(
        """
print("bytes:", *check('[streams.train]\\n' + ROWS + 'buffer = "30GB"\\nstore = {files = "DISK"}\\n', "--no-import"))
print("number:", *check('[streams.train]\\n' + ROWS + 'buffer = 50\\nstore = {ram_disk = "DISK"}\\n'))
marks = 'low_watermark = 800\\nhigh_watermark = 1000\\n'
print("marks:", *check('[streams.train]\\n' + ROWS + 'buffer = "3MiB"\\n' + marks + 'store = {files = "DISK"}\\n'))
print("both:", *check(
    '[streams.a]\\n' + ROWS + 'buffer = "3MiB"\\nstore = {ram_disk = "DISK"}\\n'
    '[streams.b]\\n' + ROWS + 'buffer = "3MiB"\\nstore = {ram_disk = "DISK"}\\n'
))
print("alone:", *check('[streams.a]\\n' + ROWS + 'buffer = "3MiB"\\nstore = {ram_disk = "DISK"}\\n'))
"""
    )
    buffer = "1 FILE:6: streams.train.buffer: "
    assert said["bytes:"].startswith(f"{buffer}27.9 GiB; allowed: up to 4.0 MiB, which DISK has left")
    assert said["number:"].startswith(f"{buffer}buffer=50 batches needs ")
    assert "DISK has " in said["number:"]
    for line, key in (("7", "low_watermark: 800"), ("8", "high_watermark: 1000")):
        told = rf"FILE:{line}: streams.train.{key}; allowed: up to \d+, as there is room for so many batches of "
        assert re.search(told, said["marks:"])
    assert said["both:"].startswith("1 FILE:13: streams.b.buffer: 3.0 MiB; allowed: up to ")
    assert "which DISK has left beside 'a'" in said["both:"]
    assert said["alone:"].startswith("0")


def test_a_ram_disk_that_is_read_only_or_not_mounted_is_told(room):
    said = room(
        """
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
text = '[streams.train]\\n' + ROWS + 'buffer = 4\\nstore = {ram_disk = "DISK"}\\n'
print("read-only:", *check(text, "--no-import"))
subprocess.run(["umount", disk], check=True)
print("unmounted:", *check(text, "--no-import"))
"""
    )
    store = "FILE:7: streams.train.store: DISK"
    assert said["read-only:"].startswith(f"1 {store} may not be written to: it is mounted read-only")
    # What lies below may itself be in memory: then there is nothing to tell.
    assert said["unmounted:"].startswith(f"0 note: {store} is on ") or said["unmounted:"] == "0 "
