"""`prefetchd config check`: every mistake with its file, line, key, what it is and may be; else what is declared."""

from __future__ import annotations

import subprocess
import sys

GOOD = """[streams.imagenet]
dataset = "my.data:make"
buffer = "30GB"
low_watermark = 800
high_watermark = 1000
store = {files = "/mnt/ram"}
progress = {file = "/tmp/progress.txt"}

[streams.other]
dataset = "my.data:other"
"""


def check(tmp_path, text):
    file = tmp_path / "streams.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "prefetchd", "config", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).replace(str(file), "FILE")


def test_mistakes_are_told_line_by_line(tmp_path):
    code, output = check(tmp_path, '[streams.train]\nbuffer = 2\nshuffle = "yes"\nepoch = 3\n')
    assert code == 1
    for told in (
        "FILE:1: streams.train.dataset is nothing; allowed: ",
        "FILE:2: streams.train.buffer is 2; allowed: ",
        "FILE:3: streams.train.shuffle is 'yes'; allowed: ",
        "FILE:4: streams.train.epoch ",
    ):
        assert told in output
    assert "good" not in output


def test_a_good_file_is_told_in_a_line_for_each_stream(tmp_path):
    assert check(tmp_path, GOOD) == (
        0,
        "imagenet: my.data:make, 27.9 GiB in files /mnt/ram, filled from 800 to 1000 batches, progress from the file "
        "/tmp/progress.txt\n"
        "other: my.data:other, the default buffer in shm, progress from the socket\n"
        "FILE: good; it declares 2 streams\n",
    )
