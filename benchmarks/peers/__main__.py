"""How does prefetchd compare with other loaders? Each in a venv of its own, in turn, round after round.

    python -m benchmarks.peers setup [--peers NAME ...]
    python -m benchmarks.peers [--works NAME ...] [--peers NAME ...] [--rounds N] [--quick]
    python -m benchmarks.peers report [--write]

setup installs what is pinned in benchmarks/peers/requirements/, some 12 GB, and makes the data. What is measured is
kept in the cache directory and adds up over invocations; report prints the tables, and --write puts them into
docs/peers.md; forget drops what was kept of the works that are named. --quick measures for moments only, and keeps its
results apart.
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.peers import report, results, runner
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.environments import NotSetUpError, cache_directory, set_up
from benchmarks.peers.sources import make_sources
from benchmarks.peers.works import NAMES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n")[0])
    parser.add_argument("verb", nargs="?", choices=["setup", "run", "report", "forget"], default="run")
    parser.add_argument("--works", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=CONTESTANTS,
        default=list(CONTESTANTS),
        metavar="NAME",
        help=", ".join(CONTESTANTS),
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a second each, kept apart: to see that all of it runs")
    parser.add_argument("--write", action="store_true", help="with report: into docs/peers.md")
    arguments = parser.parse_args()
    kept = cache_directory() / ("results-quick" if arguments.quick else "results")
    if arguments.verb == "setup":
        set_up({CONTESTANTS[name].venv for name in arguments.peers}, lambda line: print(line, flush=True))
    elif arguments.verb == "forget":
        for name in arguments.works:
            (kept / f"{name}.jsonl").unlink(missing_ok=True)
    elif arguments.verb == "report":
        found = results.read(kept)
        print(report.tables(found))
        if arguments.write:
            report.write(found)
        return
    if arguments.verb in ("setup", "run"):
        data = make_sources(cache_directory() / "data")
        runner.prepare(arguments.peers, data)
    if arguments.verb == "run":
        for _ in range(arguments.rounds):
            for work in arguments.works:
                runner.run_round(work, arguments.peers, data, kept, is_quick=arguments.quick)


if __name__ == "__main__":
    # Whoever ends this ends the contestants and daemons, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        main()
    except NotSetUpError as error:
        sys.exit(str(error))
