"""Serves the page on loopback. Needs the extra [dashboard].

Every request passes the guard first: GET only, a Host header that names this machine, and the token. What fails gets
the status code and no content, whatever it asked for.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from prefetchd.dashboard.page import MEDIA_TYPES, live_page, static_file
from prefetchd.dashboard.watcher import Watcher

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
LONGEST_NAME = 1000
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets through what the page's own browser sends."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        status = self._refused(scope)
        if status:
            await Response(status_code=status, headers=HEADERS)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> int:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or _host_name(hosts[0].decode("latin-1")) not in LOOPBACK_NAMES:
            return 403
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            return 403
        return 0 if scope["method"] == "GET" else 405


def _host_name(host: str) -> str:
    """Return the name in a Host header. The port is left out: it may be one that ssh forwards."""
    found = _HOST.fullmatch(host)
    return found["name"].lower() if found is not None else ""


def application(watcher: Watcher, token: str) -> ASGIApp:
    """Return the application that shows what `watcher` sees."""

    async def page(request: Request) -> Response:
        return Response(live_page(token), media_type="text/html", headers=HEADERS)

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in MEDIA_TYPES:
            return Response(status_code=404, headers=HEADERS)
        return Response(static_file(name), media_type=MEDIA_TYPES[name], headers=HEADERS)

    async def state(request: Request) -> Response:
        wanted = request.query_params.get("stream", "")[:LONGEST_NAME]
        found = json.dumps(watcher.document(wanted), separators=(",", ":"))
        return Response(found, media_type="application/json", headers=HEADERS)

    routes = [Route("/", page), Route("/state", state), Route("/static/{name}", static)]
    return Guard(Starlette(routes=routes), token)


def serve(watcher: Watcher, listening: socket.socket, token: str) -> None:
    """Serve on a socket that listens, until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        application(watcher, token),
        log_level="warning",
        access_log=False,  # It would show the token.
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])
