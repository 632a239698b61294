"""Writes the golden files anew, after a deliberate change of a format: python -m tests.unit.wire.golden.regenerate."""

from __future__ import annotations

from tests.unit.wire.golden.formats import FORMATS, path_of, render


def main() -> None:
    for name in FORMATS:
        path_of(name).write_text(render(name), "utf-8")
        print(path_of(name))


if __name__ == "__main__":
    main()
