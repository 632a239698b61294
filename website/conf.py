"""Configures Sphinx: the site is made of the pages where they lie, so the repository is its source directory."""

from __future__ import annotations

import prefetchd

project = "prefetchd"
author = "the authors of prefetchd"
version = release = prefetchd.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]

root_doc = "website/index"
include_patterns = ["website/**.md", "*.md", "docs/**.md", "systemd/*.md", "docker/*.md", "examples/**.md"]
exclude_patterns = [".*", "benchmarks", "build", "client", "prefetchd", "tests", "docs/images"]
# The address without a path leads to the first page.
html_extra_path = ["root"]

myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

suppress_warnings = ["myst.header"]

# `x` in docstrings is code.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"prefetchd {release}"
html_copy_source = False
