"""A link that is lost: since when, for whoever is to come back."""

from __future__ import annotations

from types import SimpleNamespace

from prefetchd_client.session import link as link_module
from prefetchd_client.session.link import Link

from prefetchd.wire.messages import Welcome


class Ended:
    """A connection whose daemon is dead."""

    is_open = False

    def receive(self):
        return None

    def close(self):
        pass


def test_daemons_that_never_answered_prolong_no_outage(monkeypatch):
    made, now_s = [], [100.0]
    monkeypatch.setattr(link_module, "Reconnection", lambda paths, **given: made.append(given))
    monkeypatch.setattr(link_module.time, "monotonic", lambda: now_s[0])
    link = Link.__new__(Link)
    link._paths, link._connection, link._reconnection = None, Ended(), None
    link._lost_s, link._has_helped = None, False
    link._handshake = SimpleNamespace(may_have=lambda workers: None)
    link._welcomed(Welcome(1, "prefetchd", 1, 1, supervised=True))
    for _ in range(2):
        link.receive()
        now_s[0] += 7
    assert [each["lost_s"] for each in made] == [100.0, 100.0]
    assert made[0]["supervised"]
    # One that answers ends the outage.
    link._welcomed(Welcome(1, "prefetchd", 1, 2, supervised=True))
    link.receive()
    assert made[-1]["lost_s"] == now_s[0]
