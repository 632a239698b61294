"""print_output shows on the trainer's stderr what workers print."""

from __future__ import annotations

import sys

from prefetchd.wire.messages import Output

OWN_WORDS = "prefetchd: "
"""What a text of the daemon's own begins with."""

_told_topics: set[str] = set()


def print_output(message: Output) -> None:
    """Prints each line under the name of the worker that printed it; what the daemon itself says, as it is. Output of a
    topic is printed once."""
    if message.topic in _told_topics:
        return
    if message.topic:
        _told_topics.add(message.topic)
    who = f"worker {message.worker}" if message.worker else "zygote"
    is_own = not message.worker and message.text.startswith(OWN_WORDS)
    for line in message.text.split("\n"):
        print(line if is_own else f"[prefetchd {who}] {line}", file=sys.stderr)
    if message.dropped:
        print(f"[prefetchd {who}] ... {message.dropped} lines left out (see `prefetchd logs`)", file=sys.stderr)
