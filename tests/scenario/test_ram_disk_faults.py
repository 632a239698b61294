"""The RAM disk fails: full, read-only, unmounted, too small. It is told, nothing is lost, and it goes on afterwards."""

from __future__ import annotations

import os

import pytest

from tests.scenario.small_rooms import in_a_small_room

PROLOGUE = """
import json, signal, time
disk, progress, config = (os.path.join(os.environ["PLACE"], name) for name in ("disk", "progress", "streams.toml"))
os.mkdir(disk)

def mount(size):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", disk], check=True)

def declare(store="files", buffer=8):
    with open(config, "w") as file:
        file.write(f'[streams.train]\\ndataset = "tests.scenario.declared_datasets:labelled"\\nbatch_size = 4\\n')
        file.write(f'dataset_args = {{length = 400}}\\nbuffer = {buffer}\\nstore = {{{store} = "{disk}"}}\\n')
        file.write(f'progress = {{file = "{progress}"}}\\n')

def at(step):
    with open(progress, "w") as file:
        file.write(f"0\\n{step}\\n")

def files():
    return sorted(int(name[17:25]) for name in os.listdir(disk) if name.startswith("epoch"))

def stream():
    found = json.loads(prefetchd("status", "--json").stdout or "{}")
    return next(iter(found.get("streams", [])), {})

def fault():
    # Batches may be there before the first snapshot that tells of their stream: then nothing is known yet.
    return stream().get("store_fault")

def until(look):
    for _ in range(600):
        if look():
            return
        time.sleep(0.05)
    sys.exit(f"not in time: {files()} {stream()}")

def occupy_disk():
    with open(os.path.join(disk, "somebody-else"), "wb") as file:
        left = os.statvfs(disk).f_bavail * 4096
        os.posix_fallocate(file.fileno(), 0, left)
"""


@pytest.fixture
def room(daemon, tmp_path):
    """room(script) runs it where `disk` may be mounted; what it has said."""
    place = tmp_path / "place"
    place.mkdir()
    environment = {**daemon.environment, "PLACE": str(place)}
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])

    def run(script):
        return in_a_small_room(PROLOGUE + script, environment)

    return run


def test_full(room):
    said = room(
        """
mount("1m"); declare(); prefetchd("run", "--detach", "--config", config)
until(lambda: files() == list(range(8)))
os.unlink(os.path.join(disk, "epoch000000-batch00000003.safetensors"))
occupy_disk()
until(lambda: "No space left" in (fault() or ""))
# What comes last gives way.
until(lambda: files() == list(range(7)))
os.unlink(os.path.join(disk, "somebody-else"))
until(lambda: files() == list(range(8)) and fault() == "")
at(3)
until(lambda: files() == list(range(3, 11)))
print("failed:", stream()["failed_batches"])
"""
    )
    assert said["failed:"] == "0"


@pytest.mark.slow
def test_a_full_one_is_degraded_and_the_log_does_not_flap(room):
    """Found as 111 lines in 10 s, and a daemon that called itself healthy."""
    said = room(
        """
mount("1m"); declare(); prefetchd("run", "--detach", "--config", config)
until(lambda: files() == list(range(8)))
os.unlink(os.path.join(disk, "epoch000000-batch00000007.safetensors"))
occupy_disk()
until(lambda: "No space left" in (fault() or ""))
done = prefetchd("status", "--json")
print("code:", done.returncode)
print("problems:", json.loads(done.stdout)["problems"])
# There is room for one batch less than is wanted: each step makes room for one, and the next finds none.
for step in range(1, 20):
    at(step)
    until(lambda: len(files()) == 7 and files()[0] == step)
log = open(json.loads(done.stdout)["daemon"]["log"]).read()
print("lines:", log.count("stored"))
os.unlink(os.path.join(disk, "somebody-else"))
until(lambda: fault() == "")
until(lambda: prefetchd("status").returncode == 0)
print("again:", open(json.loads(done.stdout)["daemon"]["log"]).read().count("batches can be stored again"))
"""
    )
    assert said["code:"] == "3"
    assert said["again:"] == "1"
    assert said["problems:"].startswith("['batches of train cannot be stored: ")
    # The daemon's look at the directory may find it full, too.
    assert int(said["lines:"]) <= 2


def test_read_only(room):
    said = room(
        """
mount("1m"); declare(); prefetchd("run", "--detach", "--config", config)
until(lambda: files() == list(range(8)))
# Over itself: the daemon's lock keeps it from being made read-only, or unmounted, as long as it is in use.
assert subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode
subprocess.run(["mount", "--bind", disk, disk], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
at(2)
until(fault)
print("fault:", fault())
subprocess.run(["umount", disk], check=True)
until(lambda: files() == list(range(2, 10)) and fault() == "")
"""
    )
    assert "ead-only" in said["fault:"]


def test_unmounted_and_mounted_again(room):
    said = room(
        """
mount("1m"); declare(); prefetchd("run", "--detach", "--config", config)
until(lambda: files() == list(range(8)))
assert subprocess.run(["umount", disk], capture_output=True).returncode
subprocess.run(["umount", "--lazy", disk], check=True)
at(2)
until(lambda: "unmounted?" in (fault() or ""))
print("below:", os.listdir(disk))
mount("1m")
until(lambda: files() == list(range(2, 10)) and fault() == "")
"""
    )
    assert said["below:"] == "[]", "nothing is written to the disk below"


@pytest.mark.parametrize("store", ["files", "ram_disk"])
def test_too_small_from_the_beginning(room, store):
    said = room(
        f"""
mount("16k"); declare("{store}"); prefetchd("run", "--detach", "--config", config)
until(lambda: stream().get("failure"))
print("failure:", stream()["failure"])
"""
    )
    assert said["failure:"].startswith("buffer=8 batches needs ")
    assert "has 1" in said["failure:"]
    assert "left: lower buffer=, or enlarge " in said["failure:"]


# --- the ring itself on the disk ---

ON_THE_DISK = """
def labels(batches):
    return [batch["label"][0].item() for batch in batches]

def declare_socket():
    declare("ram_disk")
    with open(config) as file:
        lines = [line for line in file if not line.startswith("progress")]
    with open(config, "w") as file:
        file.writelines(lines)

def rings():
    return [name for name in os.listdir(disk) if "ring" in name]

def ready():
    return (stream().get("ring") or {}).get("ready")
"""


def test_a_ring_s_file_is_removed_and_the_run_goes_on(room):
    said = room(
        ON_THE_DISK
        + """
mount("4m"); declare_socket(); prefetchd("run", "--detach", "--config", config)
until(lambda: ready() == 8)
with PrefetchLoader.attach("train") as loader:
    iterator = iter(loader)
    found = labels([next(iterator) for _ in range(3)])
    print("removed:", len(rings()))
    for name in rings():
        os.unlink(os.path.join(disk, name))
    found += labels(iterator)
print("right:", found == list(range(0, 400, 4)))
print("failed:", stream()["failed_batches"])
prefetchd("stop")
print("left on the disk:", os.listdir(disk))
"""
    )
    assert said["removed:"] == "1"
    assert said["right:"] == "True"
    assert said["failed:"] == "0"
    assert said["left"] == "on the disk: []"


@pytest.mark.parametrize(
    "fault", ['subprocess.run(["umount", "--lazy", disk], check=True)', "occupy_disk()"], ids=["unmounted", "full"]
)
def test_a_ring_that_has_its_memory_does_not_notice(room, fault):
    said = room(
        ON_THE_DISK
        + f"""
mount("4m"); declare_socket(); prefetchd("run", "--detach", "--config", config)
until(lambda: ready() == 8)
with PrefetchLoader.attach("train") as loader:
    iterator = iter(loader)
    found = labels([next(iterator) for _ in range(3)])
    {fault}
    found += labels(iterator)
print("right:", found == list(range(0, 400, 4)))
print("failed:", stream()["failed_batches"], stream()["failure"])
"""
    )
    assert said["right:"] == "True"
    assert said["failed:"] == "0 None"


def test_full_while_the_ring_must_grow(room):
    """It stays as it is, and only what does not fit is an error."""
    said = room(
        """
mount("4m")
with open(config, "w") as file:
    file.write(f'[streams.train]\\ndataset = "tests.scenario.bad_datasets:Strings"\\nbatch_size = 4\\n')
    file.write(f'dataset_args = {{lengths = {LENGTHS}}}\\nbuffer = 6\\nstore = {{ram_disk = "{disk}"}}\\n')
prefetchd("run", "--detach", "--config", config)
with PrefetchLoader.attach("train") as loader:
    iterator = iter(loader)
    seen, errors = take_while_full(iterator, occupy_disk)
    print("seen:", seen)
    print("errors:", errors)
    print("end:", next(iterator, "reached"))
"""
    )
    assert said["seen:"] == "True"
    assert said["errors:"].count("epoch 0, step 10") == 1
    assert "which cannot grow" in said["errors:"]
    assert "left: enlarge /" in said["errors:"]
    assert "docker" not in said["errors:"]
    assert said["end:"] == "reached"
