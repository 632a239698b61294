"""The configuration: what it may say, and that each mistake is told with file, line, key, what it is and may be."""

from __future__ import annotations

import pytest

from prefetchd.daemon.config.daemon_config import Config, ConfigError, DaemonConfig, StreamConfig, parse_config

DATASET = 'dataset = "data:make"\n'


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse_config(text, "s.toml", "/etc/p")
    return raised.value.problems


def stream(text: str) -> StreamConfig:
    return parse_config(f"[streams.train]\n{DATASET}{text}", "s.toml", "/etc/p").streams[0]


def test_an_empty_file_says_nothing():
    assert parse_config("") == Config()


def test_all_that_can_be_said():
    text = """
        [daemon]
        memory = "40GB"
        workers = 8
        autotune = true
        worker_memory = "8GB"
        nice = 10
        linger = 30
        linger_clean = 0
        linger_memory = "2GB"
        idle_exit = 60.5
        ray = "10.0.0.1:6379"
        ray_insecure = true
        history = "past.jsonl"

        [streams.imagenet]
        dataset = "my.data:make"
        dataset_args = {root = "/data", size = [224, 224]}
        collate_fn = "my.data:collate"
        worker_init_fn = "my.data:init"
        python = "~/venv/bin/python"
        cwd = "code"
        env = {MODE = "fast"}
        batch_size = 64
        shuffle = true
        drop_last = true
        seed = 7
        rank = 1
        world_size = 2
        on_error = "skip"
        fingerprint_extra = "v2"
        buffer = "30GB"
        low_watermark = 800
        high_watermark = 1000
        lookback = 0
        workers = 6
        remote_workers = 16
        timeout = 90
        epochs = 120
        store = {files = "/mnt/ram"}
        progress = {file = "now.txt", poll = 2}
    """
    config = parse_config(text, "s.toml", "/etc/p")
    sizes, cluster = (40 * 10**9, 8 * 10**9), ("10.0.0.1:6379", True, "/etc/p/past.jsonl")
    assert config.daemon == DaemonConfig(8, True, *sizes, 10, 30.0, 0.0, 60.5, 2 * 10**9, *cluster)
    (found,) = config.streams
    assert found.python.endswith("/venv/bin/python")
    assert not found.python.startswith("~")
    expected = StreamConfig(
        "imagenet",
        "my.data:make",
        {"root": "/data", "size": [224, 224]},
        "my.data:collate",
        "my.data:init",
        found.python,
        "/etc/p/code",
        {"MODE": "fast"},
        64,
        True,
        True,
        7,
        1,
        2,
        "skip",
        "v2",
        30 * 10**9,
        0,
        800,
        1000,
        0,
        6,
        16,
        90.0,
        120,
        "files",
        "/mnt/ram",
        "/etc/p/now.txt",
        2.0,
    )
    assert found == expected
    assert "fast" not in repr(found), "the environment is not for logs"


def test_a_buffer_is_a_number_of_batches_or_bytes():
    assert (stream("buffer = 12").buffer_batches, stream("buffer = 12").buffer_bytes) == (12, 0)
    assert stream('buffer = "1KiB"').buffer_bytes == 1024


def test_arguments_are_what_json_can_say():
    assert stream("dataset_args = {a = [1, 2.5, inf, true], b = {c = 'd'}}").dataset_args == {
        "a": [1, 2.5, float("inf"), True],
        "b": {"c": "d"},
    }


def test_a_ring_on_a_ram_disk():
    found = stream('store = {ram_disk = "/mnt/huge"}')
    assert (found.store, found.directory) == ("ram_disk", "/mnt/huge")
    assert Config(streams=(found,)).ram_disks == ("/mnt/huge",)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("batch_size = -1", "batch_size is -1; allowed: a whole number, 0 to 2147483648"),
        ("epochs = 1000001", "epochs is 1000001; allowed: a whole number, 0 to 1000000"),
        ("batch_size = true", "batch_size is True; allowed: a whole number, 0 to 2147483648"),
        ("shuffle = 1", "shuffle is 1; allowed: true or false"),
        ('buffer = "many"', "buffer is 'many'; allowed: a size, as in '8GiB', '500MB' or '4096'"),
        ("buffer = 3", "buffer is 3; allowed: a whole number, 4 to 65536 or a size, '30GB'"),
        ('on_error = "ignore"', "on_error is 'ignore'; allowed: 'raise', 'skip', 'substitute'"),
        ('collate_fn = "data"', 'collate_fn is \'data\'; allowed: "module:name", as in "my_package.data:make_dataset"'),
        ('store = "disk"', "store is 'disk'; allowed: \"shm\", {ram_disk = DIRECTORY} or {files = DIRECTORY}"),
        ("store = {files = 3}", "store.files is 3; allowed: a path"),
        ("progress = {}", 'progress is {}; allowed: "socket", {file = PATH} or {file = PATH, poll = SECONDS}'),
        ('progress = {file = "p", poll = 0}', "progress.poll is 0; allowed: seconds, 0.01 or more"),
        ("rank = 2", "rank is 2; allowed: 0 to world_size - 1, which is 0"),
        ("low_watermark = 5", "high_watermark is nothing; allowed: low_watermark and high_watermark, or neither"),
        ('lookback = 2\nstore = {files = "x"}', "lookback is 2; allowed: 0: files are made again for who goes back"),
        ("timeout = inf", "timeout is inf; allowed: seconds, 0 or more"),
        (
            "dataset_args = {since = 2026-01-01}",
            "dataset_args.since is datetime.date(2026, 1, 1); allowed: texts, numbers, booleans, lists and tables",
        ),
        (
            "dataset_args = {a = [1, {b = 07:30:00}]}",
            "dataset_args.a is [1, {'b': datetime.time(7, 30)}]; allowed: texts, numbers, booleans, lists and tables",
        ),
        ('env = {"A=B" = "x"}', "env is ['A=B']; allowed: names of variables"),
        ('env = {A = "x\\u0000"}', "env is ['A']; allowed: values without a zero byte"),
        ("env = {TOKEN = 5}", "env is ['TOKEN']; allowed: values in quotes"),
        ("batchsize = 4", "batchsize is unknown; allowed: batch_size? One of dataset, "),
    ],
)
def test_a_wrong_value_is_told_with_file_line_key_and_what_is_allowed(line, told):
    (problem,) = problems(f"# a comment\n[streams.train]\n{DATASET}{line}\n")
    number = 4 if "is nothing" not in told else 2
    assert problem.startswith(f"s.toml:{number}: streams.train.{told}")


def test_watermarks_must_be_in_order_and_within_the_buffer():
    text = f"[streams.train]\n{DATASET}buffer = 8\nlow_watermark = 10\nhigh_watermark = 10\n"
    assert problems(text) == [
        "s.toml:4: streams.train.low_watermark is 10; allowed: less than high_watermark, which is 10",
        "s.toml:5: streams.train.high_watermark is 10; allowed: up to buffer, which is 8",
    ]


def test_all_mistakes_are_told_at_once():
    text = f"[deamon]\n[daemon]\nnice = 30\n[streams.a]\nseed = -1\n[streams.b]\n{DATASET}streams = 1\n"
    assert [each.split(" is ")[0] for each in problems(text)] == [
        "s.toml:1: deamon",
        "s.toml:3: daemon.nice",
        "s.toml:4: streams.a.dataset",
        "s.toml:5: streams.a.seed",
        "s.toml:8: streams.b.streams",
    ]


def test_two_streams_do_not_share_a_directory_of_files():
    one = f'{DATASET}store = {{files = "/mnt/ram"}}\n'
    (problem,) = problems(f"[streams.a]\n{one}[streams.b]\n{one}")
    assert (
        problem == "s.toml:6: streams.b.store is '/mnt/ram'; allowed: a directory of its own; stream 'a' has that one"
    )


def test_what_is_no_toml_is_told_by_line():
    (problem,) = problems("[streams.a]\nbatch_size == 3\n")
    assert problem.startswith("s.toml: not TOML: ")
    assert "line 2" in problem


def test_tables_may_be_written_in_other_ways():
    text = 'streams."my stream".dataset = "data:make"\nstreams."my stream".seed = -4\n'
    assert problems(text)[0].startswith("s.toml:2: streams.my stream.seed is -4")
