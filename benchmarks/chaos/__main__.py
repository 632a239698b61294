"""Does every batch come, once and whole, whoever is killed?

    python -m benchmarks.chaos --kills N [--seed S] [--minutes M] [--keep]

Exits 1 when a batch was lost, repeated, reordered or torn, when one that was ready was made again, when anything was
left behind, when there were fewer kills than asked for, or when 1,000 kills and more missed a kill point.
docs/reliability.md tells how it works.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="end early after so long")
    parser.add_argument("--keep", action="store_true", help="keep journals, kill log and the daemons' log")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="prefetchd-chaos-"))
    order = directory / "order"
    order.write_bytes(bytes(128))
    # Before prefetchd is imported, which decides on its kill points then.
    os.environ.update(
        PREFETCHD_SOCKET=str(directory / "d.sock"),
        XDG_STATE_HOME=str(directory),
        PREFETCHD_INLINE="",
        PREFETCHD_KILL_POINTS=f"@{order}",
        PREFETCHD_KILL_LOG=str(directory / "kills"),
    )
    from benchmarks.chaos.report import run

    went_well = run(directory, arguments.kills, arguments.seed, arguments.minutes)
    if went_well and not arguments.keep:
        shutil.rmtree(directory)
    else:
        print(f"everything that was written: {directory}")
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
