"""What a loader may say of the nodes on which its remote workers are."""

from __future__ import annotations

import pytest

from prefetchd.wire.errors import CallerError
from prefetchd.wire.remote_resources import RemoteResources, decode_resources, encode_resources


def test_what_is_said_arrives():
    given = {"memory": "2GiB", "fast_disk": 0.5, "labels": {"zone": "a"}, "gpu_nodes": True}
    assert decode_resources(encode_resources(given)) == RemoteResources(
        2 << 30, {"fast_disk": 0.5}, {"zone": "a"}, True
    )
    assert encode_resources(dict(reversed(given.items()))) == encode_resources(given), (
        "another order is the same stream"
    )


@pytest.mark.parametrize("given", [None, {}])
def test_nothing_said_is_nothing(given):
    assert encode_resources(given) == ""
    assert decode_resources("") == RemoteResources()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([1], "dict"),
        ({"CPU": 2}, "1 CPU"),
        ({"GPU": 1}, "no GPU"),
        ({"memory": -1}, "memory"),
        ({"memory": 1.5}, "memory"),
        ({"fast_disk": 0}, "fast_disk"),
        ({"fast_disk": "much"}, "fast_disk"),
        ({"fast_disk": True}, "fast_disk"),
        ({"labels": {"zone": 1}}, "labels"),
        ({"gpu_nodes": 1}, "gpu_nodes"),
        ({"fast_disk": object()}, "numbers"),
        ({"x" * 3000: 1}, "characters"),
    ],
)
def test_anything_else_is_refused_by_name(given, word):
    with pytest.raises(CallerError, match=word):
        encode_resources(given)
