"""Every block of code is run by a test here, or is in the one table of those that are not; these are looked at, too."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys

import pytest

from prefetchd.daemon.config.daemon_config import parse_config
from tests.documents.commands import commands_of_ours, shell_commands, unit_exists, units_of, what_is_wrong
from tests.documents.not_run import GPU, NOT_RUN, TRAINERS, reason_for
from tests.documents.pages import GIVEN, PAGES, ROOT, Block, blocks, blocks_in, blocks_of, given_directory, text_of

RUN = {"python", "sh", "console", "toml"}
"""Their files: test_python_blocks.py, test_shell_blocks.py and test_batch_files_page.py, which has a toml block too."""
DRAWN = {"text", "mermaid"}
"""Pictures, formulas and tables, which nobody types."""
TYPED = re.compile(r"^(\$ |>>> |import |from \w+ import |pip |prefetchd \w+)", re.M)
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


def ids(block: Block) -> str:
    return str(block)


@pytest.mark.parametrize("block", blocks(), ids=ids)
def test_it_is_run_or_drawn_or_listed(block):
    if block.language in DRAWN:
        assert not TYPED.search(block.text), "this is typed: say in which language"
    elif block.language not in RUN:
        assert reason_for(block), f"{block.language or 'no language'}: nothing runs it, and not_run.py does not say why"


def test_a_block_that_is_neither_run_nor_listed_is_found():
    (block,) = blocks_of("1. Then\n\n       prefetchd run\n", "README.md")
    assert (block.language, block.lines) == ("", ["prefetchd run"])
    with pytest.raises(AssertionError, match="nothing runs it"):
        test_it_is_run_or_drawn_or_listed(block)
    (block,) = blocks_of("> ```text\n> $ prefetchd status\n> ```\n", "README.md")
    with pytest.raises(AssertionError, match="this is typed"):
        test_it_is_run_or_drawn_or_listed(block)


@pytest.mark.parametrize(("page", "line"), NOT_RUN, ids=lambda each: each[:40])
def test_each_line_of_the_table_is_for_one_block(page, line):
    assert len([block for block in blocks() if block.page == page and line in block.lines]) == 1


def test_what_is_run_elsewhere_is_run_there():
    pages = {page for (page, _), why in NOT_RUN.items() if why == TRAINERS}
    assert pages == {"docs/trainers.md"}
    assert '"docs" / "trainers.md"' in (ROOT / "tests" / "trainers" / "test_docs.py").read_text("utf-8")


# --- what is not run is looked at ---


@pytest.mark.parametrize("block", [each for each in blocks_in("python") if reason_for(each) == GPU], ids=ids)
def test_what_a_program_for_a_gpu_imports_is_there(block):
    imports = [node for node in ast.parse(block.text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    code = ast.unparse(ast.Module(imports, []))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("block", blocks_in("sh"), ids=ids)
def test_a_shell_reads_it(block):
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for words in shell_commands(block.text):
        if words[0] == "make":
            assert set(words[1:]) <= MAKE_TARGETS


@pytest.mark.parametrize("block", blocks_in("toml"), ids=ids)
def test_the_configuration_is_one(block):
    assert parse_config(block.text, block.page, "/srv").streams


@pytest.mark.parametrize("block", blocks_in("ini"), ids=ids)
def test_a_drop_in_has_the_unit_s_sections_and_keys(block):
    unit = (ROOT / "prefetchd" / "units" / "prefetchd.service").read_text("utf-8")
    drop_in = configparser.ConfigParser(strict=False, interpolation=None)
    drop_in.read_string(block.text)
    assert drop_in.sections()
    for section in drop_in.sections():
        assert f"[{section}]" in unit
        assert all(re.search(rf"^{key}=", unit, re.M | re.I) for key in drop_in[section])


# --- what pages name in passing ---


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_there(page):
    assert {
        " ".join(words): wrong for words in commands_of_ours(text_of(page)) if (wrong := what_is_wrong(words))
    } == {}


def test_a_command_that_is_not_there_is_found():
    text = "`prefetchd stauts` and\n\n```sh\nX=1 .venv/bin/prefetchd status --jsn  # looks\n```\n"
    wrong = [what_is_wrong(words) for words in commands_of_ours(text)]
    assert sorted(map(str, wrong)) == ["no option --jsn", "no verb 'stauts'"]
    assert what_is_wrong(["cache", "build", "a:b", "DIR", "--args", "{}"]) is None


@pytest.mark.parametrize("page", PAGES)
def test_the_units_of_a_page_are_there(page):
    found = [name for block in blocks_of(text_of(page)) for name in units_of(block.text)]
    assert [name for name in found if not unit_exists(name)] == []
    if page == "systemd/README.md":
        assert "prefetchd" in found
    assert not unit_exists("prefetchd.timer")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_reader_is_to_have(page):
    directory = given_directory(page)
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
    for path in directory.rglob("*") if directory.exists() else ():
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(directory).as_posix() in prose


def test_what_is_given_is_given_to_a_page():
    assert {path.name for path in GIVEN.iterdir()} <= {given_directory(page).name for page in PAGES}
