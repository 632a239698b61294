"""The process of this module makes a declared stream's dataset and measures its first batch, for `prefetchd config
check`.

It is started as the daemon starts its own look at a dataset (declared.py): with the interpreter, directory and
variables that are declared, and the rest as JSON on stdin. It says on a pipe what it is at, then what it has found, a
line of JSON each. Nothing of it reaches a daemon.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import signal
import sys
import traceback
from typing import Any

from prefetchd.wire.stream_spec import encode_spec
from prefetchd_client.declared import die_with, request_for
from prefetchd_client.loader.inline import measure_first
from prefetchd_client.own_version import VERSION
from prefetchd_client.program.program_pickle import pickle_program
from prefetchd_client.session.cursors import EndOfEpoch

MESSAGE_LIMIT_CHARACTERS = 2000


def main(parent: str, pipe: str) -> None:
    """Says what it finds on the inherited descriptor `pipe`, one line after the other."""
    if not die_with(int(parent)):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(int(pipe), False)
    # What is printed before a process ends at once is the best that there is to tell why.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    at = ""

    def say(**facts: Any) -> None:
        os.write(int(pipe), json.dumps(facts).encode() + b"\n")

    try:
        declared = json.load(sys.stdin)
        at = "making the dataset"
        say(at=at, software=VERSION)
        request, dataset = request_for(declared)
        pickle_program(request.parts, request.spec.batch_size)
        at = "making its first batch"
        say(at=at)
        spec = dataclasses.replace(request.spec, store=declared["store"], directory=declared["directory"])
        batch_bytes, by_rows = measure_first(spec, {**request.parts, "dataset": dataset})
        told = base64.b64encode(encode_spec(spec)).decode()
        say(spec=told, batch_bytes=batch_bytes, by_rows=by_rows)
    except EndOfEpoch:
        say(failed="its epochs have no batch", trace="")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing the user's modules may even exit
        text = f"{type(error).__qualname__}: {error}"[:MESSAGE_LIMIT_CHARACTERS]
        say(failed=f"{at}: {text}", trace=traceback.format_exc())
