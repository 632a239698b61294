"""Words that the code once had for what the field has words for do not come back (docs/architecture.md, Words)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.docs.draw import ROOT

FORMER = {
    "Surroundings": "environment",
    "Turns": "SingleThreadGuard",
    "Standing": "ResumePoint",
    "stand_at": "restore",
    "GHOST": "PLACEHOLDER_CONSUMER",
    "Homes": "ShardAffinity",
    "Alone": "SuspectIsolation",
    "WaitNames": "StallReports",
    "NameWait": "ReportStall",
    "Operating": "AdminActions",
    "CarryingOut": "CommandExecutor",
    "carry_out": "execute",
    "Watching": "StatsSampler",
    "Presence": "DaemonEndpoint",
    "DeclaringProcess": "DatasetProbe",
    "LookEvents": "ProbeEvents",
    "NoteWriter": "WorkerStatusWriter",
    "map_note": "map_worker_status",
    "read_note": "read_worker_status",
    "told_of": "describe_exit",
    "stream_for": "acquire_stream",
    "means_it": "plan_confirmed",
    "proven": "plan_verified",
    "Assumptions": "SamplerState",
    "cramped": "needs_recall",
    "pressed": "urgent",
    "homes": "shard_affinity",
    "wait_names": "stall_reports",
    "watching": "stats",
    "assumptions": "sampler_state",
    "Introduction": "Handshake",
    "introduction": "handshake",
    "settle": "by what it does: forget, end_if_over, clear_released_offers, free_finished",
}
"""Each with what it is called now. To rename something else, add it here: whoever has a branch finds it."""

MODULES = {"surroundings", "looking", "turns", "keeping_ghosts", "homes", "alone", "answers", "operating"}
MODULES |= {"carrying_out", "watching", "presence", "declaring", "wait_names", "note", "assumptions", "introduction"}

ROOMS = ("prefetchd", "client", "tests", "benchmarks", "examples", "docker")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
TEXTS = sorted(
    [*ROOT.glob("*.md"), *(path for room in ("docs", "systemd", *ROOMS) for path in (ROOT / room).rglob("*.md"))]
)
NAME = re.compile(r"(?<!\w)_?(" + "|".join(FORMER) + r")(?!\w)")


def former_words(text: str) -> list[str]:
    """Those that `text` has as a name; in a comment or a docstring they are English."""
    code = re.sub(r'""".*?"""|#[^\n]*|"[^"\n]*"', "", text, flags=re.S)
    return [f"{found} is called {FORMER[found]}" for found in NAME.findall(code)]


def code_of(text: str) -> str:
    """The code in a page of documentation: fences, and what stands between backticks; but not what is shown of a
    terminal."""
    fences = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.M | re.S)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))
    return "\n".join([code for kind, code in fences if kind != "text"] + spans)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_are_those_of_the_field(path: Path):
    assert path.stem.removeprefix("test_") not in MODULES
    assert former_words(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_in_texts_are_those_of_the_field(path: Path):
    code = code_of(path.read_text("utf-8"))
    assert former_words(code) == []
    assert sorted(MODULES.intersection(re.findall(r"(\w+)\.py\b", code))) == []


@pytest.mark.parametrize("word", FORMER)
def test_a_former_word_is_found(word):
    assert former_words(f"self._{word} = 1") == [f"{word} is called {FORMER[word]}"]
    assert former_words(f"def {word}(): ...") == [f"{word} is called {FORMER[word]}"]
    assert former_words(f'"""{word} of the user."""  # {word}') == []


def test_in_a_text_a_former_word_is_found_in_its_code_alone():
    prose = "Its `Presence` was, at `a.Turns`. Alone."
    text = f"{prose}\n```python\ncarry_out()\n```\n```text\nwatching\n```\n"
    assert former_words(code_of(text)) == [
        "carry_out is called execute",
        "Presence is called DaemonEndpoint",
        "Turns is called SingleThreadGuard",
    ]
