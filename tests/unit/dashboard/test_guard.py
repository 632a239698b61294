"""Requests as browsers and attackers send them, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prefetchd.dashboard.server import Guard

TOKEN = "right"


def answer(method: str = "GET", host: str | None = "127.0.0.1:8080", query: str = "token=right", kind: str = "http"):
    """The status code; 0 where the page itself answers."""
    sent: list[dict[str, Any]] = []
    reached: list[bool] = []

    async def page(scope, receive, send):
        reached.append(True)

    async def send(message):
        sent.append(message)

    headers = [(b"host", host.encode("latin-1"))] if host is not None else []
    scope = {"type": kind, "method": method, "path": "/", "headers": headers, "query_string": query.encode("latin-1")}
    asyncio.run(Guard(page, TOKEN)(scope, None, send))
    if reached:
        return 0
    assert all(not each.get("body") for each in sent)
    return sent[0].get("status", sent[0].get("code"))


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:9", "[::1]:8080"])
def test_request_to_this_machine_with_the_token_passes(host):
    assert answer(host=host) == 0


@pytest.mark.parametrize("query", ["", "token=", "token=wrong", "token=right2", "Token=right", "token=r%00ight", "%ff"])
def test_request_without_the_token_is_403(query):
    assert answer(query=query) == 403


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "127.0.0.1.evil.example", "[::1].evil.example", "0.0.0.0", "\xff"]
)
def test_request_to_another_name_is_403(host):
    assert answer(host=host) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_are_405(method):
    assert answer(method=method) == 405


def test_websockets_are_closed():
    assert answer(kind="websocket") == 1008
