"""Work describes one work for runner and report: its title, what it is, and its columns."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Column:
    """A measure by its name, its heading, and how many digits are shown."""

    measure: str
    heading: str
    digits: int


@dataclasses.dataclass(frozen=True)
class Work:
    """What is measured of a feed; the first column is the one that the table of all works shows."""

    title: str
    what: str
    feed: str
    columns: tuple[Column, ...]
    runs_before: int = 0
    """How many runs of the same script come before the one that counts, beside the same daemon."""


CPU = Column("cpu_s_per_1000", "CPU-s a 1,000 samples", 2)
PSS = Column("pss_mb", "PSS, MB", 0)
RATE = Column("samples_per_s", "samples/s", 0)
THROUGHPUT = (RATE, CPU, PSS)
CHEAP_THROUGHPUT = (RATE, dataclasses.replace(CPU, digits=4), PSS)
"""The same for samples that cost little."""
