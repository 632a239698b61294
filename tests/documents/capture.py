"""The screen of `prefetchd status` in the README: what the command prints of a report of a real loader.

`python -m tests.documents.capture` writes the screen anew, as the command prints it today; with `--take`, of the daemon
that runs at $PREFETCHD_SOCKET now. Look at it: it is to show a trainer that does not wait.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

from prefetchd.cli.render import render
from prefetchd.status.memory import add_pss
from prefetchd.status.snapshot import Report, read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.runtime_paths import runtime_paths
from tests.documents.pages import ROOT

README = ROOT / "README.md"
REPORT = Path(__file__).with_name("status_report.json")
SOCKET = Path("/run/user/1000/prefetchd/v1/daemon.sock")
LOG = Path("/home/ada/.local/state/prefetchd/daemon.log")
WIDTH = 100
CAPTURE = re.compile(r"^(```console\n\$ prefetchd status\n)(.*?)^```$", re.M | re.S)


def screen() -> str:
    """What the command prints of the report, on a terminal of WIDTH columns."""
    report = Report(**json.loads(REPORT.read_text("utf-8")))
    return "\n".join(render(status_object(report), SOCKET, WIDTH)) + "\n"


def take() -> None:
    """Keeps the report of the daemon that runs, without this machine's paths."""
    report = read_report(runtime_paths())
    assert report.snapshot is not None, "no daemon runs"
    add_pss(report.snapshot)
    report.snapshot["daemon"] |= {"socket": str(SOCKET), "log": str(LOG)}
    REPORT.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if "--take" in sys.argv[1:]:
        take()
    README.write_text(CAPTURE.sub(lambda found: f"{found[1]}{screen()}```", README.read_text("utf-8")), "utf-8")
