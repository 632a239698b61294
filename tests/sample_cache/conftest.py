"""Places and ways to start that these tests share with others."""

from tests.attacks.conftest import open_directory, shared_directory
from tests.scenario.conftest import executed

__all__ = ["executed", "open_directory", "shared_directory"]
