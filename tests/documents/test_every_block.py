"""Every block of code is run by a test here, or is in the one table of those that are not; these are looked at, too."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import pytest

from prefetchd.daemon.config.config_file import read_config
from tests.documents.commands import commands_of_ours, shell_commands, unit_exists, units_of, what_is_wrong
from tests.documents.not_run import GPU, NOT_RUN, RIGHTS, TRAINERS, reason_for
from tests.documents.pages import GIVEN, PAGES, ROOT, Block, blocks, blocks_in, blocks_of, given_directory, text_of
from tests.documents.test_batch_files_page import BLOCKS as FOLLOWED
from tests.documents.test_python_blocks import PROGRAMS
from tests.documents.test_readme import CAPTURED
from tests.documents.test_shell_blocks import CONSOLES, SHELLS

RUN = {*PROGRAMS, *SHELLS, *CONSOLES, *FOLLOWED, CAPTURED}
"""What the other files here run."""
DRAWN = {"text", "mermaid"}
"""Pictures, formulas and tables, which nobody types."""
TYPED = re.compile(r"^(\$ |>>> |import |from \w+ import |pip |prefetchd \w+)", re.M)
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


def extras() -> dict[str, set[str]]:
    """The packages of each extra, as pyproject.toml has them."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    return {extra: {re.split(r"[^\w-]", each)[0] for each in packages} for extra, packages in found.items()}


def ids(block: Block) -> str:
    return str(block)


@pytest.mark.parametrize("block", blocks(), ids=ids)
def test_it_is_run_or_drawn_or_listed(block):
    if block.language in DRAWN:
        assert not TYPED.search(block.text), "this is typed: say in which language"
    elif block not in RUN:
        assert reason_for(block), f"{block.language or 'no language'}: nothing runs it, and not_run.py does not say why"


def test_what_is_listed_is_not_run_here_all_the_same():
    assert {block for block in RUN if reason_for(block)} == {
        block for block in blocks() if reason_for(block) in (GPU, RIGHTS) and block.page != "systemd/README.md"
    }


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


@pytest.mark.parametrize("block", [each for each in blocks_in("toml") if reason_for(each)], ids=ids)
def test_nothing_is_wrong_with_what_a_configuration_says(block, tmp_path):
    """Whether a machine has what it takes is another question."""
    file = tmp_path / "streams.toml"
    file.write_text(block.text)
    assert len(read_config(file).streams) == 2


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


# --- what is to be installed ---

OF_PREFETCHD = {"prefetchd", "prefetchd_client", "torch", "numpy", "my_project"}
"""What is there once prefetchd is, and what is the reader's own."""


@pytest.mark.parametrize("block", blocks_in("python"), ids=ids)
def test_a_page_says_before_how_to_get_what_its_program_imports(block):
    nodes = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    names += ["tensordict"] * ("SampleCache(" in block.text)
    page = "\n".join(text_of(block.page).splitlines()[: block.line])
    said = set(re.findall(r"[\w-]+", " ".join(re.findall(r"pip install ([^`]*)`", page))))
    said |= {package for extra, packages in extras().items() if extra in said for package in packages}
    for name in {name.partition(".")[0] for name in names} - OF_PREFETCHD - set(sys.stdlib_module_names):
        # Whoever reads how to go on in a library has that library.
        assert name in said or f"\n## {name}\n" in page, f"{name}: the page does not say where it comes from"


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    """prefetchd is on none: it is installed from a clone, with extras that there are."""
    code = [path for top in ("prefetchd", "client") for path in (ROOT / top).rglob("*.py")]
    for path in [*code, *(ROOT / page for page in PAGES), ROOT / "CHANGELOG.md"]:
        for what in re.findall(r"pip install ((?:-\S+ )*[^\s`]+)", path.read_text("utf-8")):
            assert not re.match(r"['\"]?prefetchd\b", what), path
            for extra in re.findall(r"\.\[([\w,]+)\]", what):
                assert set(extra.split(",")) <= extras().keys(), path
