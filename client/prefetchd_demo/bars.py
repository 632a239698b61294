"""bar_chart draws durations as bars, one under the other. Pure: figures and width in, text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rich.text import Text

from prefetchd_demo.durations import format_duration

MOST_CELLS, FEWEST_CELLS = 48, 8
EIGHTHS = " ▏▎▍▌▋▊▉"
WHOLE, PLAIN = "█", "#"
INDENT = "  "


@dataclasses.dataclass(frozen=True)
class BarGroup:
    """Bars that are compared: the longest has the full width. `seconds` by what each is of."""

    title: str
    seconds: Mapping[str, float]


def bar_chart(groups: Sequence[BarGroup], styles: Mapping[str, str], width: int, plain: bool) -> Text:
    """Returns the bars, in the styles of their names; `plain` is for terminals that have nothing but ASCII."""
    names = max(len(name) for group in groups for name in group.seconds)
    figures = max(len(format_duration(each)) for group in groups for each in group.seconds.values())
    cells = max(FEWEST_CELLS, min(MOST_CELLS, width - len(INDENT) - names - figures - 4))
    text = Text()
    for group in groups:
        text.append(group.title + "\n", "bold")
        longest = max(group.seconds.values())
        for name, seconds in group.seconds.items():
            text.append(f"{INDENT}{name:<{names}}  ")
            share = seconds / longest if longest else 0.0
            text.append(_bar(share * cells, plain), styles.get(name, ""))
            text.append(f" {format_duration(seconds)}\n")
        text.append("\n")
    text.rstrip()
    return text


def _bar(cells: float, plain: bool) -> str:
    """Returns a bar of so many cells, and never nothing at all."""
    if plain:
        return PLAIN * max(1, round(cells))
    whole, eighth = divmod(max(1, round(cells * 8)), 8)
    return WHOLE * whole + (EIGHTHS[eighth] if eighth else "")
