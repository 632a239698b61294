"""The README's charts: the throughputs of docs/performance.md beside DataLoader's, and JPEGs beside the contestants of
docs/peers.md; all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
PERFORMANCE = DOCS / "performance.md"
PEERS = DOCS / "peers.md"
JPEGS = "JPEG to bytes"

# How the chart calls a row of the tables. A row of throughput that is not named here is an error.
LABELS = {
    "handoff, 256x3x224x224 uint8, 2 workers": "hand-off, bytes",
    "handoff, the same in float32": "hand-off, floats",
    "jpeg, batch 64 (3 rounds)": "JPEGs to floats",
    "the same, pixels as bytes": "JPEGs to bytes",
    "tiny, batch 128 (3 rounds)": "tiny images",
    "tokens, rows of 128 from a file, batch 512": "tokens",
    "the same with `__getitems__` (3 rounds)": "tokens, __getitems__",
    "text, batch 64, padded": "padded texts",
    "train, crop and flip, as bytes": "cache, train, bytes",
    "the same as floats, normalised by the workers (2026-11-27)": "cache, train, floats",
    "validate, from the second epoch on, as bytes": "cache, validate, bytes",
    "the same, normalised before": "cache, validate, floats",
}


def throughputs(text: str) -> dict[str, float]:
    """Of each row of `text` with images, rows or batches a second, and DataLoader's: the ratio, by the row's name."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    found = {}
    for name, ours, *others in rows:
        ratio = next(
            (match for match in (re.match(r"([\d.]+) .*of DataLoader", each) for each in others) if match), None
        )
        if ratio is not None and re.search(r"(img|batches|rows)/s$", ours):
            found[name] = float(ratio[1])
    return found


def chart() -> str:
    """Bars, the longest first."""
    ratios = {LABELS[name]: ratio for name, ratio in throughputs(PERFORMANCE.read_text("utf-8")).items()}
    return _bars("Throughput, in multiples of DataLoader", "times DataLoader", ratios)


def beside_others(text: str, work: str) -> dict[str, float]:
    """Of each contestant of docs/peers.md whose first measure of the work is known: that measure."""
    table = text.split(f"\n### {work}\n")[1].split("\n### ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    return {name: float(first.split()[0].replace(",", "")) for name, first, *_ in rows[1:] if first != "-"}


def jpeg_chart() -> str:
    """Bars of all contestants, the longest first."""
    found = beside_others(PEERS.read_text("utf-8"), JPEGS)
    return _bars("JPEGs of 500x375 cropped to 224x224 bytes, by two workers or threads", "images a second", found)


def _bars(title: str, unit: str, found: Mapping[str, float]) -> str:
    names = sorted(found, key=lambda name: -found[name])
    labels = ", ".join(f'"{name} ({_shown(found[name])})"' for name in names)
    return "\n".join(
        [
            "```mermaid",
            "xychart-beta horizontal",
            f'    title "{title}"',
            f"    x-axis [{labels}]",
            f'    y-axis "{unit}" 0 --> {max(found.values()):.0f}',
            f"    bar [{', '.join(f'{found[name]:g}' for name in names)}]",
            "```",
        ]
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
