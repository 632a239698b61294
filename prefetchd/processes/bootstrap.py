"""Defines how an interpreter that was started for us becomes a zygote or a worker."""

from __future__ import annotations

# Run as -c BOOTSTRAP, with sys.path as JSON, then main()'s arguments: this very prefetchd must be found first.
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from prefetchd.workers.zygote import main; main(*sys.argv[2:])"
)
BRIDGE_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from prefetchd.remote.bridge import main; main(*sys.argv[2:])"
)
"""Run like BOOTSTRAP: how an interpreter becomes a bridge to other machines."""

ENVIRONMENT, STREAM, WORKER = "environment", "stream", "worker"
