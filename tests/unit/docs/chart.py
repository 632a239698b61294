"""The README's chart: the throughputs of docs/performance.md beside DataLoader's, all of them."""

from __future__ import annotations

import re
from pathlib import Path

PERFORMANCE = Path(__file__).resolve().parents[3] / "docs/performance.md"

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
    "the same, normalised in the trainer": "cache, train, floats",
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
    ratios = throughputs(PERFORMANCE.read_text("utf-8"))
    names = sorted(ratios, key=lambda name: -ratios[name])
    labels = ", ".join(f'"{LABELS[name]} ({ratios[name]:g})"' for name in names)
    return "\n".join(
        [
            "```mermaid",
            "xychart-beta horizontal",
            '    title "Throughput, in multiples of DataLoader"',
            f"    x-axis [{labels}]",
            f'    y-axis "times DataLoader" 0 --> {max(ratios.values()):.0f}',
            f"    bar [{', '.join(f'{ratios[name]:g}' for name in names)}]",
            "```",
        ]
    )
