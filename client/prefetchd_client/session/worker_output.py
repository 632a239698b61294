"""print_output shows on the trainer's stderr what workers print."""

from __future__ import annotations

import sys

from prefetchd.wire.messages import Output

_told_topics: set[str] = set()


def print_output(message: Output) -> None:
    """Prints each line under the name of the worker that printed it. Output of a topic is printed once."""
    if message.topic in _told_topics:
        return
    if message.topic:
        _told_topics.add(message.topic)
    who = f"worker {message.worker}" if message.worker else "zygote"
    for line in message.text.split("\n"):
        print(f"[prefetchd {who}] {line}", file=sys.stderr)
    if message.dropped:
        print(f"[prefetchd {who}] ... {message.dropped} lines left out (see `prefetchd logs`)", file=sys.stderr)
