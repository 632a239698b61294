"""What is said of Ray's errors: where somebody can do something about them, what."""

from __future__ import annotations

import pytest

from prefetchd.remote import ray_cluster
from prefetchd.remote.ray_cluster import ClusterError, RayCluster
from prefetchd.remote.ray_errors import MOST_CHARACTERS, reason_of

NOT_INSTALLED = """\
The actor died because of an error raised in its creation task, \x1b[36mray::FillActor.__init__()\x1b[39m \
(pid=190, ip=10.0.0.3, actor_id=ec01, repr=<TemporaryActor object at 0x7f>)
RuntimeError: The actor with name FillActor failed to import on the worker.

Traceback (most recent call last):
  File "function_manager.py", line 700, in _load_actor_class_from_gcs
ModuleNotFoundError: No module named 'prefetchd'
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NOT_INSTALLED, "no module prefetchd on node 10.0.0.3: pip install it there, in the Python that Ray"),
        ("\n  \x1b[31mred\x1b[0m \x1b]0;title\x07words\nmore", "red words"),
        ("x Traceback (most recent call last):\n  File\nKeyError: 3", "x KeyError: 3"),
        ("Version mismatch: a\n  Ray: 1\n  Python: 2", "Version mismatch: a Ray: 1 Python: 2"),
        ("No module named 'theirs'", "No module named 'theirs'"),
    ],
)
def test_an_error_is_one_line_without_escapes(text, reason):
    assert reason_of(RuntimeError(text)).startswith(reason)


def test_an_error_without_words_is_named():
    assert reason_of(KeyError()) == "KeyError"
    assert len(reason_of(RuntimeError("x" * 1000))) == MOST_CHARACTERS


def test_a_machine_without_a_node_is_told_how_to_become_one(monkeypatch):
    monkeypatch.setattr(ray_cluster, "raylets", lambda: iter(()))
    with pytest.raises(ClusterError, match=r"run `ray start --address=10\.0\.0\.1:6379 --num-cpus=0` here first"):
        RayCluster("10.0.0.1:6379", print, print)
