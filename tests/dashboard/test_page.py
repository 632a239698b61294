"""The live page in a real browser, beside real daemons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.daemon.segments.status_segment import StatusSegment
from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.process_stat import process_stat
from tests.conftest import Daemon
from tests.dashboard.conftest import dashboard
from tests.scenario.waiting import until
from tests.timed.situations import Samples
from tests.unit.cli.examples import report, stream

MARKUP = '<img src=x onerror="document.title=1"><b>train</b>'
MOST_DASHBOARD_BYTES = 120 << 20


def loader(**options):
    return PrefetchLoader(Samples(0.01), batch_size=4, num_workers=2, **{"buffer": 8, "seed": 1} | options)


# Its memory is measured: an interpreter that is forked from another has what that one imported.
@pytest.mark.executed
def test_page_follows_a_run_and_shows_what_status_shows(daemon, browser):
    with dashboard(daemon) as (url, pid), loader(stream=MARKUP) as batches:
        browser.open(url)
        for step, _ in enumerate(batches):
            if step % 10 == 0 and "waited" in browser.text("#stream-answer") and "tasks" in browser.text("#lanes .alt"):
                break
        # A daemon that is stopped writes nothing, so that status and page read the same.
        os.kill(daemon.pid, signal.SIGSTOP)
        (said,) = status_object(read_report(daemon.paths))["streams"]
        wanted = [said["verdict"]["answer"], said["verdict"]["text"]]
        until(
            lambda: [browser.text("#stream-answer"), browser.text("#verdict")] == wanted,
            f"the page shows what status says: {wanted}",
        )
        assert f"ready{said['ring']['ready']} of {said['ring']['slots']} slots" in browser.text("#numbers")
        os.kill(_stopped(daemon), signal.SIGCONT)
        # A name is text, whatever it looks like.
        assert browser.text("#name") == MARKUP
        assert browser.run("return document.querySelectorAll('main img, main b').length") == 0
        assert browser.run("return document.querySelectorAll('.uplot canvas').length") == 5
        assert "batches a second" in browser.text("#chart-rates .alt")
        assert browser.run("return document.querySelectorAll('figure:not(:has(.alt))').length") == 0
        assert psutil.Process(pid).memory_info().rss < MOST_DASHBOARD_BYTES
        assert browser.console() == []


def test_page_survives_the_daemon_s_death_and_return(daemon, browser):
    with dashboard(daemon) as (url, _):
        browser.open(url)
        until(lambda: "no daemon runs" in browser.text("#answer"), "the page waits for a daemon")
        with loader(stream="first") as batches:
            next(iter(batches))
            until(lambda: browser.text("#name") == "first", "the page shows the stream")
            victim = daemon.pid
            os.kill(victim, signal.SIGSTOP)
            until(lambda: "the daemon hangs" in browser.text("#answer"), "the page says that the daemon hangs")
            os.kill(victim, signal.SIGCONT)
            until(lambda: "hangs" not in browser.text("#answer"), "the page says that it goes on")
        # Not kill_all(): the dashboard is a process of this socket, too.
        os.kill(daemon.pid, signal.SIGKILL)
        until(lambda: "the daemon is dead" in browser.text("#answer"), "the page says that the daemon is dead")
        with loader(stream="second") as batches:
            next(iter(batches))
            until(lambda: "dead" not in browser.text("#answer"), "the page shows the next daemon")
            until(lambda: "second" in browser.text("#stream, #streams"), "the page shows its stream")
        assert browser.console() == []


def test_page_fits_its_screen_and_is_readable(daemon, browser):
    with dashboard(daemon) as (url, _), loader(stream="train") as batches:
        next(iter(batches))
        for scheme in ("light", "dark"):
            for width, mobile in ((1200, False), (390, True)):
                browser.prefer(scheme)
                browser.resize(width, 800, mobile=mobile)
                browser.open(url)
                until(lambda: browser.text("#name") == "train", "the page shows the stream")
                assert browser.run("return document.documentElement.scrollWidth") <= width
                low = browser.run(CONTRAST)
                assert low == [], f"{scheme}, {width}: text of less contrast than 4.5 to 1"
        assert browser.console() == []


CONTRAST = """
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([red, green, blue]) => [red, green, blue].map((each) => {
  const share = each / 255;
  return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}).reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const found = parts(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("h1, h2, h3, p, strong, th, td, dt, dd, li, figcaption")]
  .filter((each) => each.textContent && each.offsetParent)
  .map((each) => {
    const [one, other] = [light(parts(getComputedStyle(each).color)), light(ground(each))].sort((a, b) => b - a);
    return [(one + 0.05) / (other + 0.05), each.textContent];
  })
  .filter(([ratio]) => ratio < 4.5);
"""


def status_of(url: str, **headers: str) -> tuple[int, bytes]:
    method = headers.pop("method", "GET")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_requests_without_the_token_get_403_and_nothing_else(daemon):
    with dashboard(daemon) as (url, _):
        base, token = url.split("?token=")
        assert status_of(url)[0] == 200
        assert json.loads(status_of(f"{base}state?token={token}")[1])["state"] == "absent"
        for path in ("", "state", "static/page.js", "static/none", "none"):
            for query in ("", "?token=", "?token=wrong", f"?token={token}x"):
                assert status_of(f"{base}{path}{query}") == (403, b""), (path, query)
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
            assert status_of(url, Host=host) == (403, b""), host
        assert status_of(url, method="POST")[0] == 405
        assert status_of(f"{base}static/..%2Fserver.py?token={token}")[0] == 404


def test_port_in_use_is_one_clear_line(daemon):
    with dashboard(daemon) as (url, _):
        port = url.split(":")[2].split("/")[0]
        found = daemon.command("dashboard", "--port", port, check=False)
        assert (found.returncode, found.stdout) == (1, "")
        assert f"127.0.0.1:{port} cannot be listened on" in found.stderr
        assert len(found.stderr.splitlines()) == 1


def test_dashboard_without_its_packages_names_them(daemon):
    code = "import sys; sys.modules['uvicorn'] = None; from prefetchd.cli.main import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code, "dashboard"], env=daemon.environment, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 1
    assert "pip install starlette uvicorn" in found.stderr


def test_truncated_status_segment_is_one_clear_line(daemon, browser):
    with dashboard(daemon) as (url, _), loader(stream="train") as batches:
        next(iter(batches))
        browser.open(url)
        until(lambda: browser.text("#name") == "train", "the page shows the stream")
        os.kill(daemon.pid, signal.SIGSTOP)
        (name,) = [each for each in daemon.segments() if each.endswith("-status")]
        os.truncate(f"/dev/shm/{name}", 100)
        until(lambda: "yet to say anything" in browser.text("#answer"), "the page says that there is nothing to read")
        os.kill(_stopped(daemon), signal.SIGCONT)
        until(lambda: browser.text("#name") == "train", "the page shows the stream again")
        assert browser.console() == []


def _stopped(daemon) -> int:
    return next(each.pid for each in daemon.processes() if each.status() == psutil.STATUS_STOPPED)


def test_first_paint_with_64_streams_takes_less_than_a_second(tmp_path, browser):
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path)
    names = [f"stream {number}" for number in range(64)]
    found = report(*(stream(name=name) for name in names)).snapshot
    assert found is not None
    about = process_stat(os.getpid())
    assert about is not None
    found["daemon"] |= {"pid": os.getpid(), "start_ticks": about.start_ticks}
    segment = StatusSegment(daemon.paths, 1)
    try:
        segment.write(found)
        with dashboard(daemon) as (url, _):
            browser.open(url)
            rows = "return document.querySelectorAll('#streams tbody tr').length"
            until(lambda: browser.run(rows) == len(names), "the page lists all streams")
            painted = browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
            assert painted < 1000
    finally:
        segment.close()


def test_report_opens_without_a_server_and_survives_its_run(daemon, browser, tmp_path):
    with loader(stream=MARKUP) as batches:
        for _ in batches:
            stream = next(iter(status_object(read_report(daemon.paths)).get("streams", [])), None)
            if stream is not None and stream["verdict"]["answer"] and daemon.paths.history.exists():
                break
        running = tmp_path / "running.html"
        daemon.command("report", "-o", str(running))
    os.kill(daemon.pid, signal.SIGKILL)
    after, data = tmp_path / "after.html", tmp_path / "after.json"
    daemon.command("report", MARKUP, "-o", str(after))
    daemon.command("report", "--json", "-o", str(data))
    both = tmp_path / "both.html"
    daemon.command("report", "--compare", str(data), str(data), "-o", str(both))
    for page in (running, after):
        assert page.stat().st_size < 2_000_000
        browser.open(page.as_uri())
        assert browser.text("#name") == MARKUP
        assert "torch" in browser.text("#report")
        assert browser.run("return document.querySelectorAll('main img, main b').length") == 0
    browser.open(both.as_uri())
    assert "Two runs side by side" in browser.text("h1")
    assert "batches used in all" in browser.text("#compare")
    assert browser.console() == []
    found = daemon.command("report", "nope", check=False)
    assert (found.returncode, len(found.stderr.splitlines())) == (1, 1)
    assert "no stream 'nope'" in found.stderr
    # The next daemon goes on with the history, and removes it when it ends.
    daemon.start()


def test_report_without_daemon_or_history_is_one_clear_line(daemon):
    found = daemon.command("report", check=False)
    assert (found.returncode, len(found.stderr.splitlines())) == (1, 1)
    assert "no daemon on" in found.stderr
