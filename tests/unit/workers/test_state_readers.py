"""Hooked readers are noticed by a seeder, and by nobody else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

KEEPS = """
    import random

    import numpy.random
    import torch
    from numpy.random import get_state
    from random import getstate
    from torch import default_generator, get_rng_state, initial_seed


    class Keeps:
        def __init__(self):
            self.readers = [get_state, getstate, get_rng_state, initial_seed]

        def __getitem__(self, index):
            return get_state(), getstate(), get_rng_state(), initial_seed(), torch.initial_seed(), default_generator
"""

PROGRAM = """
    import types

    import torch
    from keeps import Keeps
    from prefetchd_client.fingerprint.walk import describe
    from prefetchd.workers.state_readers import hook_state_readers, kept_state_readers

    dataset = Keeps()
    before = describe({"dataset": dataset, "class": Keeps})
    hook_state_readers(kept_state_readers())
    assert torch.initial_seed.__module__ == "prefetchd.workers.state_readers", "or nothing is hooked"
    after = describe({"dataset": Keeps(), "class": Keeps})
    assert before == after
    assert describe({"dataset": dataset}) == {name: before[name] for name in describe({"dataset": dataset})}
    assert type(torch) is types.ModuleType
    assert isinstance(torch.default_generator, torch.Generator)
    try:
        torch.no_such_name
    except AttributeError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError("torch has it")
"""


def test_a_fingerprint_that_is_taken_in_a_worker_s_process_is_the_trainer_s(tmp_path):
    """Found by chaos: a fork and its trainer had another fingerprint each."""
    (tmp_path / "keeps.py").write_text(textwrap.dedent(KEEPS))
    paths = [str(tmp_path), *(entry for entry in sys.path if entry)]
    program = f"import sys; sys.path[:0] = {paths!r}\n{textwrap.dedent(PROGRAM)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
