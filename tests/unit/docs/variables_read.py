"""The environment variables that the code reads or sets, found in its syntax trees."""

from __future__ import annotations

import ast
import re

from tests.unit.docs.draw import ROOT

PLACES = {"os.environ", "os.environb", "environ", "env", "variables"}
"""What code calls an environment."""
METHODS = ("get", "pop", "setdefault")
NAME = re.compile(r"_?[A-Z][A-Z0-9_]+")
OURS = re.compile(r"_?PREFETCHD_[A-Z]+(_[A-Z]+)*")

FILES = sorted(path for top in ("prefetchd", "client") for path in (ROOT / top).rglob("*.py"))
BY_OTHERS = {"TMPDIR": "tempfile.gettempdir()", "COLUMNS": "shutil.get_terminal_size()"}
"""What Python reads for us, and by which call."""


def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text("utf-8")) for path in FILES]


def text_of(node: ast.expr | None) -> str:
    """A text or bytes; empty for anything else."""
    value = node.value if isinstance(node, ast.Constant) else ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _asks(function: str) -> bool:
    """Whether a call of it names a variable first: an environment's own methods, and what makes one of names."""
    place, _, method = function.rpartition(".")
    return (place in PLACES and method in METHODS) or function in ("os.getenv", "dict.fromkeys")


def variables() -> set[str]:
    """All names by which an environment is asked, or that are put into one; ours wherever they stand alone."""
    everything = [node for tree in trees() for node in ast.walk(tree)]
    constants: dict[str, list[str]] = {}
    for node in everything:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            elements = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            constants.setdefault(node.targets[0].id, []).extend(map(text_of, elements))

    def named(node: ast.expr) -> list[str]:
        return constants.get(node.id, []) if isinstance(node, ast.Name) else [text_of(node)]

    def is_place(node: ast.expr) -> bool:
        return ast.unparse(node) in PLACES

    found: list[str] = []
    for node in everything:
        if isinstance(node, ast.Constant) and OURS.fullmatch(text_of(node)):
            found.append(text_of(node))
        elif isinstance(node, ast.Subscript) and is_place(node.value):
            found += named(node.slice)
        elif isinstance(node, ast.Call) and node.args and _asks(ast.unparse(node.func)):
            found += named(node.args[0])
        if isinstance(node, ast.For) and any(
            isinstance(each, ast.Call) and ast.unparse(each.func) in {f"{place}.pop" for place in PLACES}
            for each in ast.walk(node)
        ):
            found += named(node.iter)
        if isinstance(node, ast.Call):
            found += [name for word in node.keywords if word.arg == "envvar" for name in named(word.value)]
            if ast.unparse(node.func) == "dict" and node.args and is_place(node.args[0]):
                found += [word.arg or "" for word in node.keywords]
    return {name for name in found if NAME.fullmatch(name)}
