"""The reference system's own way, scaled down: much room, watermarks far below it, a trainer that tells rarely."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.contract.declared_daemons import Declared, ram_disk
from tests.scenario.oracle import shuffled
from tests.scenario.waiting import until

LOW, HIGH, EPOCHS, LENGTH, BATCH, EVERY = 8, 10, 3, 160, 4, 2
STEPS = LENGTH // BATCH
LINES = f"""
dataset = "tests.scenario.declared_datasets:labelled"
dataset_args = {{length = {LENGTH}}}
batch_size = {BATCH}
shuffle = true
seed = 5
buffer = "1MB"
low_watermark = {LOW}
high_watermark = {HIGH}
"""

TRAINER = """
import json, os, sys, time
sys.modules["prefetchd"] = sys.modules["prefetchd_client"] = None
from safetensors.numpy import load_file

directory, progress, epochs, steps, every = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
found, most = [], 0
for number in range(epochs * steps):
    epoch, batch = divmod(number, steps)
    if number % every == 0:
        with open(progress, "w") as file:
            file.write(f"{epoch}\\n{batch}\\n")
    path = f"{directory}/epoch{epoch:06}-batch{batch:08}.safetensors"
    while not os.path.exists(path):
        most = max(most, sum(name.startswith("epoch") for name in os.listdir(directory)))
        time.sleep(0.001)
    most = max(most, sum(name.startswith("epoch") for name in os.listdir(directory)))
    tensors = load_file(path)
    assert (tensors["image"] == tensors["label"][:, None, None]).all()
    found.append(tensors["label"].tolist())
print(json.dumps({"found": found, "most": most}))
"""


@pytest.fixture
def declared(daemon, tmp_path):
    with ram_disk() as disk:
        yield Declared(daemon, tmp_path, disk, "files", "file", LINES)
        daemon.stop_and_check()


def test_three_epochs_between_the_watermarks_for_a_trainer_that_tells_rarely(declared):
    declared.start()
    until(lambda: len(declared.files()) == HIGH, "filled up to the high watermark")
    told = json.loads((declared.ram_disk / "stream.json").read_text())
    assert told["bound_bytes"] > 3 * HIGH * told["place_bytes"], "the room is not what ends the filling"
    arguments = map(str, (declared.ram_disk, declared.progress, EPOCHS, STEPS, EVERY))
    done = subprocess.run([sys.executable, "-c", TRAINER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    orders = [shuffled(5, epoch, LENGTH) for epoch in range(EPOCHS)]
    assert said["found"] == [order[at : at + BATCH] for order in orders for at in range(0, LENGTH, BATCH)]
    assert said["most"] == HIGH
    waited_for = [EPOCHS * STEPS - EVERY + waiting for waiting in range(LOW, HIGH + 1)]
    stream = declared.when(lambda found: found["produced_batches"] in waited_for, "it rests between the watermarks")
    assert stream["failed_batches"] == 0
