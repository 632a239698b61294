"""Puts the page together: for a browser that loads its parts, or as one file with everything in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

MEDIA_TYPES = {
    "page.css": "text/css",
    "uplot.min.css": "text/css",
    "uplot.min.js": "text/javascript",
    "charts.js": "text/javascript",
    "page.js": "text/javascript",
}
"""The page's parts, in the order in which it loads them."""


def static_file(name: str) -> str:
    """Return a part of the page, or its skeleton."""
    return files("prefetchd.dashboard").joinpath("static").joinpath(name).read_text("utf-8")


def live_page(token: str) -> str:
    """Return the page that asks its server for a new document every second."""
    query = f"?token={html.escape(token)}"
    head = "".join(
        f'<link rel="stylesheet" href="static/{name}{query}">'
        if kind == "text/css"
        else f'<script src="static/{name}{query}" defer></script>'
        for name, kind in MEDIA_TYPES.items()
    )
    return static_file("page.html").replace("<!-- parts -->", head)


def frozen_page(document: Mapping[str, Any], title: str) -> str:
    """Return one file that shows this document without a server. It may run its own scripts and load nothing."""
    styles = "".join(f"<style>{static_file(n)}</style>" for n, kind in MEDIA_TYPES.items() if kind == "text/css")
    # A script would end at its first "</script", wherever that stands.
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    scripts = [static_file(name) for name, kind in MEDIA_TYPES.items() if kind == "text/javascript"]
    hashes = " ".join(f"'sha256-{_digest(each)}'" for each in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">{styles}'
    body = f'<script type="application/json" id="frozen">{data}</script>'
    body += "".join(f"<script>{each}</script>" for each in scripts)
    page = static_file("page.html").replace("<!-- parts -->", head, 1).replace("<!-- frozen -->", body, 1)
    return page.replace("<title>prefetchd</title>", f"<title>{html.escape(title)}</title>", 1)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
