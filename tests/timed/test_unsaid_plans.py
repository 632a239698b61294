"""An epoch that is gone on with keeps what is ready of it, though a daemon dies before its planner has said anything.

Alone: on a busy machine a planner has begun by then, from what the program says of itself, and what is ready is made
again. That is no promise kept; it is known, and to be mended.
"""

from __future__ import annotations

from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.test_samplers import is_full, kill_and_start, order, seeded
from tests.scenario.watching import stream_when


def test_the_daemon_is_killed_before_its_planner_has_said_anything(daemon):
    """Found by chaos: the next one planned a resumed epoch from what the program said, and dropped what was ready."""
    daemon.start()
    with PrefetchLoader(Numbers(120), 4, shuffle=True, generator=seeded()) as loader:
        order(loader)
        straight = order(loader)
    # Not the generator that the state goes on from: only what is assumed can tell.
    arguments = {"batch_size": 4, "shuffle": True, "generator": seeded(99), "buffer": 8, "stream": "resumed"}
    with PrefetchLoader(Numbers(120), **arguments) as loader:
        loader.generator.set_state(seeded().get_state())
        order(loader)
        iterator = iter(loader)
        for _ in range(7):
            next(iterator)
        state = loader.state_dict()
        stream_when(daemon, "resumed", is_full, "its ring is full")
    kill_and_start(daemon)
    with PrefetchLoader(Numbers(120), **arguments) as loader:
        loader.load_state_dict(state)
        kill_and_start(daemon)
        assert order(loader) == straight[7:]
        stream_when(daemon, "resumed", lambda stream: stream["consumed_batches"] == 23, "it was told")
        assert stream_when(daemon, "resumed")["replanned_batches"] == 0
