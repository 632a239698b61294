"""What the docs point to is there: links, files, names of the code; and the decisions are complete."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.unit.docs.draw import DOCS, ROOT

BESIDE = ("CONTRIBUTING.md", "docker/README.md", "systemd/README.md")
FILES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in BESIDE)]
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))

NAMING = [path for path in FILES if path.name != "performance.md" and path.parent.name not in ("docker", "systemd")]

# Names of others than ours: of Python, Linux and systemd; and of fields that only the tables of formats.md name.
FOREIGN = {"PR_SET_PDEATHSIG", "RANK", "getattr", "globals", "importlib.import_module", "pipx", "su", "sudo"}
FOREIGN |= {"header_bytes", "slot_record_bytes", "prefetchd_info"}
FOREIGN |= {"set_determinism", "predict", "idist.auto_dataloader"}


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```|^    .*?$", "", path.read_text("utf-8"), flags=re.M | re.S)


@functools.cache
def words_of_the_code() -> frozenset[str]:
    tops = ("prefetchd", "client", "tests", "benchmarks")
    files = [path for top in tops for path in (ROOT / top).rglob("*.py") if "docs" not in path.parts]
    files += [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "prefetchd" / "units" / "prefetchd.service"]
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text("utf-8")))


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text("utf-8"), re.M)
            slugs = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_files_and_directories_that_are_named_are_there(path):
    for name in re.findall(r"`((?:prefetchd|client|tests|docs|benchmarks|docker|systemd)/[\w./-]*)`", prose(path)):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", NAMING, ids=ids)
def test_names_of_the_code_are_in_it(path):
    known = words_of_the_code()
    for name in re.findall(r"`([A-Za-z]\w[\w.]*)(?:\([^`]*\)|=)?`", prose(path)):
        if name not in FOREIGN:
            assert set(name.split(".")) <= known, name


def test_each_decision_has_a_number_of_its_own():
    numbers = [path.name[:4] for path in DECISIONS]
    assert all(number.isdecimal() for number in numbers)
    assert len(set(numbers)) == len(numbers)


def test_the_index_has_every_decision_under_its_title():
    index = (DOCS / "decisions" / "README.md").read_text("utf-8")
    rows = [f"| [{path.name[:4]}]({path.name}) | {title_of(path)} |" for path in DECISIONS]
    assert [line for line in index.splitlines() if line.startswith("| [")] == rows


@pytest.mark.parametrize("path", DECISIONS, ids=ids)
def test_a_decision_says_why_what_and_what_follows(path):
    assert re.findall(r"^## (.*)$", path.read_text("utf-8"), re.M) == ["Context", "Decision", "Consequences"]
    assert len(path.read_text("utf-8").splitlines()) <= 60, "a decision is short"


def title_of(path: Path) -> str:
    number, _, title = path.read_text("utf-8").splitlines()[0].removeprefix("# ").partition(" ")
    assert number == path.name[:4]
    return title
