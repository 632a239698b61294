"""Which Host headers mean this machine."""

from __future__ import annotations

import pytest

from prefetchd.daemon.sockets.scrapes import _names_loopback


def request(*hosts: str) -> bytes:
    lines = ["GET /metrics HTTP/1.1", *(f"Host: {host}" for host in hosts)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:9400", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:9400", "[0:0::1]:1", " localhost\t"],
)
def test_names_of_this_machine_are_answered(host):
    assert _names_loopback(request(host))


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.example",
        "[::1].evil.example:9400",
        "[::1]evil",
        "[::1",
        "[::1%evil]",
        "[127.0.0.1]",
        "::1",
        "localhost:@evil.example",
        "localhost:9400@evil.example",
        "localhost@evil.example",
        "localhost:evil",
        "localhost:9400:9400",
        "localhost:123456",
        "localhost/evil.example",
        "localhost.evil.example",
        "localhost evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "10.0.0.1",
        "[2001:db8::1]",
        "evil.example",
        "",
        ":9400",
        "[]:9400",
    ],
)
def test_what_only_begins_like_one_is_refused(host):
    assert not _names_loopback(request(host))
    assert not _names_loopback(request("localhost", host)), "each Host counts"


def test_without_a_host_it_is_http_1_0():
    assert _names_loopback(b"GET /metrics HTTP/1.0\r\n\r\n")
