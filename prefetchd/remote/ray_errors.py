"""Says in one line what is behind an error of Ray's. Pure."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
TRACEBACK = "Traceback (most recent call last):"

OTHER_VERSION = "Version mismatch:"
"""The beginning of Ray's error where the cluster has another Ray, or another Python. Its lines name both versions."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NO_PREFETCHD = re.compile(r"No module named '(prefetchd|prefetchd_client)(?:\.[\w.]*)?'")
_ADDRESS = re.compile(r"\bip=([^,)\s]+)")


def reason_of(error: BaseException) -> str:
    """Return the first line of what is behind the error: Ray's own says little. Of other versions it is all lines, and
    of a traceback the last one."""
    text = _ESCAPES.sub("", str(error.__cause__ or error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if missing := no_prefetchd(text):
        return missing
    if text.startswith(OTHER_VERSION):
        return " ".join(lines)[:MOST_CHARACTERS]
    if lines and lines[0].endswith(TRACEBACK):
        lines[0] = lines[0].removesuffix(TRACEBACK) + lines[-1]
    return lines[0][:MOST_CHARACTERS] if lines else type(error).__name__


def no_prefetchd(text: str) -> str:
    """Return what to do where a node lacks prefetchd, as an error of Ray's says; empty where it is another error."""
    missing, address = _NO_PREFETCHD.search(text), _ADDRESS.search(text)
    if missing is None:
        return ""
    node = f"node {address[1]}" if address is not None else "a node"
    return f"no module {missing[1]} on {node}: pip install it there, in the Python that Ray runs in"
