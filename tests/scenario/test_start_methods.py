"""How workers come to be: forked from the trainer, or executed where somebody has asked for that."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import threading
import warnings

import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.start_method import EXEC, FORK, start_method

from tests.scenario.waiting import stream_when

METHODS = {"fork": "fork", "spawn": "executed", "forkserver": "executed"}


@pytest.fixture
def unset():
    """Nobody has set a start method for this process."""
    former = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    yield
    multiprocessing.set_start_method(former, force=True)


def zygote_of(daemon, stream: str, **options) -> str:
    with PrefetchLoader(list(range(24)), 4, stream=stream, socket=str(daemon.socket), **options) as loader:
        assert [batch.tolist() for batch in loader] == [list(range(at, at + 4)) for at in range(0, 24, 4)]
        return stream_when(daemon, stream, lambda found: found["zygote"] != "none", "it has one")["zygote"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("given", ["by name", "as an object"])
@pytest.mark.usefixtures("unset")
def test_a_context_decides(shared_daemon, method, given):
    context = method if given == "by name" else multiprocessing.get_context(method)
    found = zygote_of(shared_daemon, f"{method} {given}", multiprocessing_context=context, num_workers=1)
    assert found == METHODS[method]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("unset")
def test_the_start_method_of_the_process_decides_where_there_is_no_context(shared_daemon, method):
    multiprocessing.set_start_method(method, force=True)
    assert zygote_of(shared_daemon, f"{method} for all") == METHODS[method]
    context = multiprocessing.get_context("fork")
    assert zygote_of(shared_daemon, f"{method} but", multiprocessing_context=context, num_workers=1) == "fork"


@pytest.mark.usefixtures("unset")
def test_while_another_thread_imports_nothing_is_forked(shared_daemon, tmp_path, monkeypatch):
    """A fork would find the import's lock held for ever."""
    (tmp_path / "imported_for_long.py").write_text(
        "import sys\nbegun, go_on = sys.held_import\nbegun.set()\ngo_on.wait()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "held_import", (begun, go_on), raising=False)
    thread = threading.Thread(target=importlib.import_module, args=("imported_for_long",))
    thread.start()
    try:
        begun.wait()
        assert start_method(None) == EXEC
        assert zygote_of(shared_daemon, "beside an import") == "executed"
    finally:
        go_on.set()
        thread.join()
        sys.modules.pop("imported_for_long", None)
    assert start_method(None) == FORK
    assert zygote_of(shared_daemon, "after an import") == "fork"


def test_python_s_warning_of_forks_of_threaded_processes_is_not_shown(shared_daemon, monkeypatch):
    """Python 3.12 and later warn; DataLoader's own forks there say nothing."""
    forks = []
    fork = os.fork

    def warn_and_fork() -> int:
        forks.append(os.getpid())
        text = f"This process (pid={os.getpid()}) is multi-threaded, use of fork() may lead to deadlocks in the child."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return fork()

    monkeypatch.setattr(os, "fork", warn_and_fork)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert zygote_of(shared_daemon, "threaded") == "fork"
        warnings.warn("the user's own", DeprecationWarning, stacklevel=1)
    assert forks, "it has forked"
    assert [str(each.message) for each in shown] == ["the user's own"]
