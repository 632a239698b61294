"""The parts of README.md and docs/ that are drawn; `python -m tests.unit.docs.draw` draws them anew.

A drawn part stands between the lines `<!-- drawn: NAME -->` and `<!-- end of NAME -->`. DRAWN tells which file has
which parts; everything outside of them is written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from prefetchd.ring.policy import TABLE, SlotState
from prefetchd.wire.messages import MESSAGE_TYPES, Message
from tests.unit.docs.chart import chart, jpeg_chart

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
CHAIN_COLUMNS = 90

# The order of the map. A test fails when it leaves a package out.
PACKAGES = (
    "prefetchd",
    "prefetchd/kill_points",
    "prefetchd/wire",
    "prefetchd/plan",
    "prefetchd/ring",
    "prefetchd/diagnosis",
    "prefetchd/tuning",
    "prefetchd/progress",
    "prefetchd/processes",
    "prefetchd/workers",
    "prefetchd/supervisor",
    "prefetchd/remote",
    "prefetchd/daemon",
    "prefetchd/daemon/engine",
    "prefetchd/daemon/engine/stream",
    "prefetchd/daemon/engine/pool",
    "prefetchd/daemon/shell",
    "prefetchd/daemon/segments",
    "prefetchd/daemon/sockets",
    "prefetchd/daemon/telemetry",
    "prefetchd/daemon/config",
    "prefetchd/daemon/declared",
    "prefetchd/daemon/process",
    "prefetchd/status",
    "prefetchd/dashboard",
    "prefetchd/cli",
    "prefetchd/cli/checks",
    "prefetchd/units",
    "client/prefetchd_client",
    "client/prefetchd_client/loader",
    "client/prefetchd_client/session",
    "client/prefetchd_client/connection",
    "client/prefetchd_client/batches",
    "client/prefetchd_client/device",
    "client/prefetchd_client/fingerprint",
    "client/prefetchd_client/changes",
    "client/prefetchd_client/program",
    "client/prefetchd_client/forking",
    "client/prefetchd_client/images",
    "client/prefetchd_client/sample_cache",
    "client/prefetchd_client/integrations",
    "client/prefetchd_client/script_check",
    "client/prefetchd_demo",
)

# Who sends to whom is what the headings of messages.py say; these say it less exactly than one wants to read it.
DIRECTIONS = {
    "any peer -> daemon: the first message of every connection": "trainer or command to daemon",
    "daemon -> any peer": "daemon to trainer or command",
    "fork -> daemon: the first message of a connection": "fork to daemon",
    "control": "command to daemon",
}
DIRECTIONS_OF_ONE = {
    "Farewell": "daemon to trainer or command",
    "Done": "daemon to command",
    "SamplesWrote": "worker to daemon, and daemon to trainer",
    "Reloaded": "daemon to command",
    "TrainerEnvironment": "declaring process or trainer to daemon",
    "TraceEvents": "daemon to command",
    "SpawnStream": "daemon to environment zygote",
    "SpawnWorker": "daemon to stream zygote",
    "Spawned": "zygote to daemon",
    "Ready": "stream zygote or worker to daemon",
    "LoadFailed": "stream zygote or worker to daemon",
    "ChildEnded": "zygote to daemon",
    "NotSpawned": "zygote to daemon",
    "Enclosed": "daemon or child to child or daemon",
    "AskPlan": "daemon to planner",
    "Rebase": "daemon to planner",
    "Begun": "planner to daemon",
    "Planned": "planner to daemon",
    "PlanFailed": "planner to daemon",
}
_FIELD_TYPES = {"Ints": "array of int", "Rows": "array of arrays of int", "Blobs": "array of bytes"}


# --- the slots' states ---


def slot_states() -> str:
    """The table of ring.policy as a state picture."""
    events: dict[tuple[SlotState, SlotState], list[str]] = {}
    for (before, event), after in TABLE.items():
        events.setdefault((before, after), []).append(event.value)
    lines = [f"    {before.name} --> {after.name}: {', '.join(names)}" for (before, after), names in events.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> FREE", *lines, "```"])


# --- the map of the modules ---


def rooms() -> str:
    """Each package by the first sentence of its docstring, and how many modules it has."""
    lines = ["| room | modules | what it is |", "|---|---|---|"]
    for package in PACKAGES:
        anchor = re.sub(r"[^\w-]", "", package)
        sentence = _first_sentence(ROOT / package / "__init__.py")
        lines.append(f"| [`{package}/`](#{anchor}) | {len(_modules_of(package))} | {sentence} |")
    return "\n".join(lines)


def modules() -> str:
    """One table a package: each module by the first sentence of its docstring."""
    parts = []
    for package in PACKAGES:
        parts.append(f"### `{package}/`\n\n{_first_sentence(ROOT / package / '__init__.py')}\n")
        lines = [
            f"| [`{path.stem}`](../{package}/{path.name}) | {_first_sentence(path)} |" for path in _modules_of(package)
        ]
        if lines:
            parts.append("\n".join(["| module | what it is |", "|---|---|", *lines, ""]))
    return "\n".join(parts).rstrip()


def packages() -> set[str]:
    """All packages that there are, as paths below the root of the project."""
    files = [path for top in ("prefetchd", "client") for path in (ROOT / top).rglob("__init__.py")]
    return {path.parent.relative_to(ROOT).as_posix() for path in files}


def _modules_of(package: str) -> list[Path]:
    return [path for path in sorted((ROOT / package).glob("*.py")) if path.stem != "__init__"]


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring, f"{path} has no docstring"
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    found = re.match(r"(.*?\.)(?:\s|$)", paragraph)
    sentence = found[1] if found else paragraph + "."
    return sentence.replace("|", r"\|")


# --- which package imports which ---


# By the name of the contract that holds them.
LAYERED = {
    "prefetchd": "imports go one way",
    "prefetchd.daemon": "the daemon's rooms, one above the other",
    "prefetchd.daemon.engine": "the engine's rooms, one above the other",
    "prefetchd_client": "the client's rooms, one above the other",
}


def imports() -> str:
    """The layers that import-linter holds, of each package that has some, the highest first."""
    blocks = [f"{package}\n{_chain(package)}" for package in LAYERED]
    return "\n".join(["```text", "\n\n".join(blocks), "```"])


def layers(package: str) -> list[str]:
    """The layers of the package's contract in pyproject.toml, without its own name; what stands beside each other in
    one, with bars between."""
    contracts = (ROOT / "pyproject.toml").read_text("utf-8").split("\n[[tool.importlinter.contracts]]\n")[1:]
    (contract,) = [each for each in contracts if each.startswith(f'name = "{LAYERED[package]}"\n')]
    found = re.search(r"^layers = (\[.*?\])", contract, re.M | re.S)
    assert found
    names: list[str] = ast.literal_eval(found[1])
    return [layer.replace(f"{package}.", "") for layer in names]


def _chain(package: str) -> str:
    """The layers, several a line, with arrows between."""
    lines: list[str] = []
    for layer in layers(package):
        if not lines or len(lines[-1]) + len(layer) > CHAIN_COLUMNS:
            lines.append(f"    -> {layer}" if lines else f"    {layer}")
        else:
            lines[-1] += f" -> {layer}"
    return "\n".join(lines)


# --- the messages ---


def messages() -> str:
    """Each message with its number, who sends it to whom, its fields and what it means."""
    return "\n\n".join(_message(number, MESSAGE_TYPES[number]) for number in sorted(MESSAGE_TYPES))


def _message(number: int, cls: type[Message]) -> str:
    head = f"**{number} `{cls.__name__}`** {directions()[cls.__name__]}"
    fields = [_field(field) for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    text = inspect.cleandoc(cls.__doc__ or "")
    return "\n\n".join([head, "Fields: " + (", ".join(fields) if fields else "none"), _as_markdown(text)])


def directions() -> dict[str, str]:
    """Message to direction, "sender to receiver"."""
    found: dict[str, str] = {}
    heading = ""
    for line in (ROOT / "prefetchd/wire/messages.py").read_text("utf-8").splitlines():
        if line.startswith("# --- "):
            heading = line.strip("# -")
        elif named := re.match(r"class (\w+)\(Message\):", line):
            found[named[1]] = DIRECTIONS.get(heading, heading.replace("->", "to"))
    return found | DIRECTIONS_OF_ONE


def _field(field: dataclasses.Field[object]) -> str:
    kind = _FIELD_TYPES.get(str(field.type), str(field.type))
    default = "" if field.default is dataclasses.MISSING else f" = {_written(field.default)}"
    return f"`{field.name}` {kind}{default}"


def _written(value: object) -> str:
    return {"()": "[]", "b''": "empty", "''": '""', "False": "false"}.get(repr(value), repr(value))


def _as_markdown(docstring: str) -> str:
    """Paragraphs as they are; indented lists of names as blocks of their own."""
    paragraphs = []
    for paragraph in docstring.split("\n\n"):
        if re.match(r"\w+ {2,}", paragraph):
            paragraphs.append(f"```text\n{paragraph}\n```")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


# --- into the files and out of them ---

DRAWN: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"chart": chart, "JPEGs": jpeg_chart},
    "docs/architecture.md": {"rooms": rooms, "modules": modules, "imports": imports, "slot states": slot_states},
    "docs/formats.md": {"messages": messages},
}


def drawn_part(text: str, name: str) -> str:
    """What stands in `text` between the marks of `name`."""
    begin, end = marks(name)
    assert text.count(begin) == text.count(end) == 1, f"the marks of {name!r} are not there once each"
    return text.split(begin)[1].split(end)[0].strip("\n")


def with_part(text: str, name: str, part: str) -> str:
    """`text` with `part` between the marks of `name`."""
    begin, end = marks(name)
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{part}\n\n{end}{rest.split(end)[1]}"


def marks(name: str) -> tuple[str, str]:
    return f"<!-- drawn: {name} -->", f"<!-- end of {name} -->"


def main() -> None:
    for file, parts in DRAWN.items():
        path = ROOT / file
        text = path.read_text("utf-8")
        for name, draw in parts.items():
            text = with_part(text, name, draw())
        path.write_text(text, "utf-8")
        print(file)


if __name__ == "__main__":
    main()
