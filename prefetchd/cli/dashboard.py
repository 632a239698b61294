"""Implements `prefetchd dashboard`: a live page, served by a process of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket as sockets
from collections.abc import Iterator

import click

from prefetchd.cli.control_client import ControlClient
from prefetchd.cli.options import socket_option
from prefetchd.dashboard.watcher import Watcher
from prefetchd.wire.messages import Done, Trace, TraceEvents
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

HOST = "127.0.0.1"
TRACED_S = 10.0
"""Seconds of a trace: as long as a page is open, the next one follows."""
NEEDS = "the dashboard needs starlette and uvicorn: pip install starlette uvicorn"


@click.command("dashboard")
@socket_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port on 127.0.0.1; 0: a free one."
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser, too.")
def command(socket: str | None, port: int, opens: bool) -> None:
    """Serve a live page of the daemon's streams on loopback, until Ctrl-C. Its URL is printed first.

    The page answers "is it the data?" and shows why. It is read from what the daemon writes anyway, so it goes on while
    the daemon hangs, after it died, and before one runs. The URL has a token, without which every request is refused.
    On another machine, forward the port with ssh.

    Exit code: 0 ended by Ctrl-C; 1 the port is in use, or the packages of the extra [dashboard] are missing.
    """
    try:
        from prefetchd.dashboard.server import serve
    except ImportError:
        raise click.ClickException(NEEDS) from None
    paths = runtime_paths(socket)
    listening = _listen(port)
    token = secrets.token_urlsafe(24)
    url = f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"
    click.echo(url)
    watcher = Watcher(paths, lambda: _tracing(paths))
    watcher.start()
    if opens:
        _open(url)
    with contextlib.suppress(KeyboardInterrupt):
        serve(watcher, listening, token)
    watcher.stop()


def _listen(port: int) -> sockets.socket:
    listening = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM)
    listening.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise click.ClickException(
            f"{HOST}:{port} cannot be listened on: {error.strerror}. Choose another port, or --port 0 for a free one"
        ) from None
    return listening


def _open(url: str) -> None:
    import webbrowser

    # A browser that writes to this terminal would take it over.
    graphical = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    if not graphical or not webbrowser.open(url):
        click.echo("no browser could be opened here: open the URL yourself", err=True)


class _Trace:
    """Hears one trace."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def hear(self) -> TraceEvents | None:
        while not isinstance(message := self._client.hear(), Done):
            if isinstance(message, TraceEvents):
                return message
        return None


@contextlib.contextmanager
def _tracing(paths: RuntimePaths) -> Iterator[_Trace]:
    with ControlClient(paths) as client:
        client.say(Trace(round(TRACED_S * 1000)))
        client.wait_up_to(TRACED_S + 5)
        yield _Trace(client)
