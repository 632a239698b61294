"""Each module of the engine has a file of its name in tests/unit, which explains its rules to whoever changes it."""

from __future__ import annotations

import pytest

from tests.unit.docs.draw import ROOT

ENGINE = ROOT / "prefetchd/daemon/engine"
MODULES = sorted(path.relative_to(ENGINE) for path in ENGINE.rglob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_of_the_engine_has_a_unit_test_of_its_name(module):
    assert (ROOT / "tests/unit/daemon/engine" / module.parent / f"test_{module.name}").is_file()
