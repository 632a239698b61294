"""Makes the package's description and addresses: outside of a checkout the README's links to files lead nowhere.

`repository` in pyproject.toml is the address of the published repository. Where it is empty, as nobody knows one yet,
a link becomes what shows that page in an installation, and there are no [project.urls].
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^):]+?)\)\n*")
_LINK = re.compile(r"\[([^\]]*)\]\(([^):]+?)(#[^)]*)?\)")


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatchling when it builds a wheel, an sdist or an editable installation."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = str(self.config.get("repository", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, repository)}
        metadata["urls"] = urls(repository)


def described(readme: str, repository: str) -> str:
    """Returns the README with its links to files of the repository turned into ones that work elsewhere."""

    def turned(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if repository:
            return f"[{text}]({repository}/blob/main/{target}{anchor})"
        page = page_of(target)
        if not page:
            return f"{text} (in the source)"
        shown = f"`prefetchd docs {page}`"
        return shown if target.startswith(text) else f"{text} ({shown})"

    # Pictures are not in an installation.
    shown = rf"![\1]({repository}/raw/main/\2)\n\n" if repository else ""
    return _LINK.sub(turned, _IMAGE.sub(shown, readme))


def page_of(target: str) -> str:
    """Returns the name under which `prefetchd docs` shows that file of the repository; empty when it does not."""
    path = PurePosixPath(target)
    if path.name == "README.md" and path.parent.name in ("systemd", "docker"):
        return path.parent.name
    return path.stem if path.parent.name == "docs" and path.suffix == ".md" else ""


def urls(repository: str) -> dict[str, str]:
    """Returns [project.urls]."""
    if not repository:
        return {}
    page = f"{repository}/blob/main"
    return {
        "Repository": repository,
        "Documentation": f"{page}/docs/architecture.md",
        "Changelog": f"{page}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
