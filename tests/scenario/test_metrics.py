"""A running daemon is scraped, and what it says is read by Prometheus' own parser."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import time
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader
from prometheus_client.parser import text_string_to_metric_families

from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.durations import BOUNDS_S
from prefetchd.wire.segment_layout import WAIT_BOUNDS_US
from tests.scenario.datasets import Numbers
from tests.scenario.declared_datasets import slow
from tests.scenario.waiting import stream_when, until


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


def ask(connection, method="GET", path="/metrics"):
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def scrape(path):
    status, headers, text = ask(UnixConnection(path))
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(name.startswith("prefetchd") for name in families)
    assert all(family.documentation for family in families.values())
    return families


def value(families, family, sample, **labels):
    (found,) = [
        each.value for each in families[family].samples if each.name == sample and labels.items() <= each.labels.items()
    ]
    return found


def streams_of(daemon):
    """By name, what status says of each."""
    return {each["name"]: each for each in status_object(read_report(daemon.paths)).get("streams", [])}


@pytest.fixture
def address(daemon):
    return daemon.socket.with_name("metrics.sock")


def test_counters_gauges_and_histograms_are_those_of_the_stream(daemon, address):
    daemon.start("--workers", "2", "--metrics", f"unix:{address}")
    assert address.stat().st_mode & 0o777 == 0o600
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=6, stream='na"m\\e') as loader:
        iterator = iter(loader)
        began_s = time.monotonic()
        for _ in range(30):
            next(iterator)
        took_s = time.monotonic() - began_s
        found = stream_when(daemon, 'na"m\\e', lambda stream: stream["consumed_batches"] == 30)
        until(lambda: scrape_count(address) == 30, "the daemon has looked at the waits")
        families = scrape(address)
        labels = {"stream": 'na"m\\e'}
        assert value(families, "prefetchd_batches_consumed", "prefetchd_batches_consumed_total", **labels) == 30
        made = value(families, "prefetchd_batches_produced", "prefetchd_batches_produced_total", **labels)
        assert 30 <= made <= 36
        slots = [each for each in families["prefetchd_ring_slots"].samples if each.labels["stream"] == 'na"m\\e']
        assert sum(each.value for each in slots) == found["ring"]["slots"] == 6
        assert value(families, "prefetchd_workers_limit", "prefetchd_workers_limit") == 2
        assert value(families, "prefetchd_consumers", "prefetchd_consumers", **labels) == 1
        for name, bounds in (
            ("next_wait", len(WAIT_BOUNDS_US)),
            ("fill_task", len(BOUNDS_S)),
            ("sample", len(BOUNDS_S)),
        ):
            family = families[f"prefetchd_{name}_seconds"]
            assert family.type == "histogram"
            counts = [each.value for each in family.samples if each.name.endswith("_bucket")]
            assert len(counts) == bounds + 1
            assert counts == sorted(counts)
            total = value(families, family.name, f"{family.name}_count", **labels)
            assert counts[-1] == total > 0
        assert value(families, "prefetchd_sample_seconds", "prefetchd_sample_seconds_count", **labels) >= 120
        # The loop does nothing but wait in next(): for the first batch most of the time.
        waited_s = value(families, "prefetchd_next_wait_seconds", "prefetchd_next_wait_seconds_sum", **labels)
        assert 0.5 * took_s < waited_s <= took_s
    daemon.command("stop")
    assert not address.exists()


def test_a_declared_stream_has_no_trainer_until_one_comes(daemon, address, tmp_path):
    file = tmp_path / "streams.toml"
    file.write_text(
        '[streams.train]\ndataset = "tests.scenario.declared_datasets:numbers"\nbatch_size = 4\nbuffer = 8\n'
    )
    daemon.start("--config", str(file), "--metrics", f"unix:{address}")

    def trainers() -> float:
        return value(scrape(address), "prefetchd_consumers", "prefetchd_consumers", stream="train")

    stream_when(daemon, "train", lambda stream: stream["batches_ready"] > 0)
    assert trainers() == 0
    with PrefetchLoader.attach("train") as loader:
        next(iter(loader))
        assert trainers() == 1


def test_health_progress_and_the_verdict_are_those_of_the_status(daemon, address, tmp_path):
    file = tmp_path / "streams.toml"
    file.write_text('[streams.typo]\ndataset = "tests.scenario.declared_datasets:nothing"\n')
    daemon.start("--config", str(file), "--metrics", f"unix:{address}")
    labels = {"stream": "train"}

    def scraped() -> dict:
        families = scrape(address)
        return {
            name: [each.value for each in family.samples if labels.items() <= each.labels.items()]
            for name, family in families.items()
        } | {"problems": value(families, "prefetchd_problems", "prefetchd_problems")}

    with PrefetchLoader(slow(400, sample_s=0.02), batch_size=4, num_workers=2, buffer=8, stream="train") as loader:
        iterator = iter(loader)

        step = 0

        def is_judged() -> bool:
            nonlocal step
            next(iterator)
            step += 1
            return streams_of(daemon).get("train", {}).get("verdict", {}).get("limit") == "waiting"

        until(is_judged, "its workers wait")
        until(lambda: scraped()["problems"] == 1, "what is declared has failed")
        families, shown = scrape(address), streams_of(daemon)["train"]
        assert value(families, "prefetchd_healthy", "prefetchd_healthy") == 0
        assert value(families, "prefetchd_verdict", "prefetchd_verdict", limit="waiting", **labels) == 1
        assert sum(scraped()["prefetchd_verdict"]) == 1, "there is one verdict"
        wanted = value(families, "prefetchd_workers_wanted", "prefetchd_workers_wanted", **labels)
        assert wanted == shown["verdict"]["workers_wanted"]
        assert value(families, "prefetchd_stream_workers", "prefetchd_stream_workers", **labels) == 2
        assert value(families, "prefetchd_stream_tuned", "prefetchd_stream_tuned", **labels) == 0
        buffer_tuned = value(families, "prefetchd_stream_buffer_tuned", "prefetchd_stream_buffer_tuned", **labels)
        assert buffer_tuned == shown["buffer_tuned"]
        stalled = value(families, "prefetchd_stalled_share", "prefetchd_stalled_share", **labels)
        assert stalled == pytest.approx(shown["verdict"]["stalled_share"], abs=0.1)
        assert value(families, "prefetchd_progress_step", "prefetchd_progress_step", **labels) == step
        assert value(families, "prefetchd_progress_epoch", "prefetchd_progress_epoch", **labels) == 0
        assert value(families, "prefetchd_runway_seconds", "prefetchd_runway_seconds", **labels) >= 0
        for name in ("prefetchd_store_fault", "prefetchd_stream_failed"):
            assert value(families, name, name, **labels) == 0
        assert not scraped()["prefetchd_progress_unreadable"], "it has no progress file"


class OneIsSlow:
    """Every 20th sample waits."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index % 20 == 7:
            time.sleep(0.03)
        return index


class SeveralAtOnce(OneIsSlow):
    def __getitems__(self, indices):
        time.sleep(0.05)
        return indices


def longer_than(families, name, bound_s, **labels):
    """How many of a histogram are longer than one of its bounds."""
    family = families[name]
    counts = {
        each.labels["le"]: each.value
        for each in family.samples
        if each.name.endswith("_bucket") and labels.items() <= each.labels.items()
    }
    return counts["+Inf"] - counts[str(bound_s)]


def test_a_slow_sample_shows_as_itself_and_samples_made_at_once_as_equal_parts(daemon, address):
    daemon.start("--workers", "1", "--metrics", f"unix:{address}")
    with (
        PrefetchLoader(OneIsSlow(), batch_size=20, stream="one by one", buffer=40) as first,
        PrefetchLoader(SeveralAtOnce(), batch_size=20, stream="at once", buffer=40) as second,
    ):
        for loader in (first, second):
            assert len(list(loader)) == 20
        families = scrape(address)
        made = {}
        for stream in ("one by one", "at once"):
            labels = {"stream": stream}
            made[stream] = value(families, "prefetchd_sample_seconds", "prefetchd_sample_seconds_count", **labels)
        # Samples of the next epoch are there as well.
        assert made["one by one"] >= 400
        assert longer_than(families, "prefetchd_sample_seconds", 0.025, stream="one by one") >= 20
        seconds = value(families, "prefetchd_sample_seconds", "prefetchd_sample_seconds_sum", stream="one by one")
        assert seconds >= 0.03 * 20
        parts = longer_than(families, "prefetchd_sample_seconds", 0.001, stream="at once")
        assert parts == made["at once"] >= 400
    daemon.command("stop")


def test_the_names_are_those_that_are_documented(daemon, address):
    text = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `(prefetchd_\w+)` \| (\w+) \|", text, re.M))
    daemon.start("--metrics", f"unix:{address}")
    found = {family.name: family.type for family in scrape(address).values()}
    assert {name.removesuffix("_info") if kind == "info" else name for name, kind in documented.items()} == {
        name.removesuffix("_info") for name in found
    }
    assert all(found[name] == kind for name, kind in documented.items() if name in found and kind != "info")
    # Base units, and no suffix that the format itself gives.
    assert not [
        name for name in found if re.search(r"_(ms|us|ns|millis\w*|kb|mib|percent|total|count|sum|bucket)$", name)
    ]
    assert all(name.endswith("_seconds") for name, kind in found.items() if kind == "histogram")


def scrape_count(address):
    families = scrape(address)
    return value(families, "prefetchd_next_wait_seconds", "prefetchd_next_wait_seconds_count")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_of_the_loopback(daemon, host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        try:
            free.bind((host, 0))
        except OSError as error:
            pytest.skip(f"no {host} here: {error}")
        port = free.getsockname()[1]
    daemon.start("--metrics", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    status, _, text = ask(http.client.HTTPConnection(host, port, timeout=30))
    assert status == 200
    assert "prefetchd_workers_busy 0.0" in text


def test_what_is_no_scrape_is_answered_so_and_disturbs_nobody(daemon, address):
    daemon.start("--metrics", f"unix:{address}")
    assert ask(UnixConnection(address), path="/")[0] == 404
    assert ask(UnixConnection(address), "POST")[0] == 405
    assert ask(UnixConnection(address), "HEAD")[2] == ""
    for said in (b"", b"\0" * 100_000, b"GET /metrics HTTP/1.1\r\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(address))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sendall(said)
    idle = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(15)]
    for peer in idle:
        peer.connect(str(address))
    assert scrape(address)
    for peer in idle:
        peer.close()


@pytest.mark.parametrize("address", ["0.0.0.0:9400", "192.0.2.1:1", "9400x", "127.0.0.1:99999", "unix:/nowhere/at/all"])
def test_an_address_that_may_not_be_or_cannot_be_is_an_error(daemon, address):
    done = daemon.command("run", "--metrics", address, check=False)
    assert done.returncode == 1
    assert address in done.stderr
    assert "allowed: 127.0.0.1:PORT" in done.stderr


def test_a_socket_that_a_killed_daemon_left_is_taken_over(daemon, address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(address))
    daemon.start("--metrics", f"unix:{address}")
    assert scrape(address)


@pytest.fixture
def port(daemon):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = free.getsockname()[1]
    daemon.start("--metrics", f"127.0.0.1:{found}")
    return found


def test_slow_connections_do_not_keep_scrapes_out(port):
    with contextlib.ExitStack() as slow:
        for number in range(60):
            sock = slow.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):
                sock.send(b"GET /metrics HT"[: number % 16])
        status, _, text = ask(http.client.HTTPConnection("127.0.0.1", port, timeout=30))
        assert status == 200
        assert "prefetchd_streams" in text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9400", 200),
        ("127.0.0.1", 200),
        ("[::1]:9400", 200),
        ("LOCALHOST", 200),
        ("prefetchd.example.org", 403),
        ("prefetchd.example.org:9400", 403),
        ("localhost.example.org", 403),
        ("127.0.0.1.example.org", 403),
        ("", 403),
    ],
)
def test_only_who_means_this_machine_is_answered(port, host, status):
    """A page in a browser may ask in the name of a domain that points here."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Host": host})
    assert connection.getresponse().status == status
    connection.close()
