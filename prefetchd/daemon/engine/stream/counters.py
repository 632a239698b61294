"""Counters count what has happened on a stream. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from prefetchd.wire.durations import Durations
from prefetchd.wire.errors import ProtocolError


@dataclasses.dataclass(slots=True)
class Counters:
    """The counts of one stream since it began. Of its batches `elsewhere` were made on other machines, and have
    `elsewhere_bytes`; filling them is not in `fill_us`."""

    batches: int = 0
    samples: int = 0
    payload_bytes: int = 0
    elsewhere: int = 0
    elsewhere_bytes: int = 0
    tasks: int = 0
    fill_us: int = 0
    consumed: int = 0
    waited_us: int = 0
    failed: int = 0
    deviations: int = 0
    worker_deaths: int = 0
    bad_samples: int = 0
    retries: int = 0
    zygote_deaths: int = 0
    lines_left_out: int = 0
    longest_task_us: int = 0
    task_durations: Durations = dataclasses.field(default_factory=Durations)
    sample_durations: Durations = dataclasses.field(default_factory=Durations)

    def batch_is_ready(self, payload_bytes: int) -> None:
        """Counts a batch of so many bytes that can be offered for the first time."""
        self.batches += 1
        self.payload_bytes += payload_bytes

    def batch_is_ready_from_elsewhere(self, payload_bytes: int) -> None:
        """Counts such a batch that another machine has made."""
        self.batch_is_ready(payload_bytes)
        self.elsewhere += 1
        self.elsewhere_bytes += payload_bytes

    @property
    def filled_here_bytes(self) -> int:
        """The bytes of those batches that `fill_us` was spent on."""
        return self.payload_bytes - self.elsewhere_bytes

    def task_took(self, duration_us: int, samples: int) -> None:
        """Counts a fill task of so many samples that is done."""
        self.tasks += 1
        self.fill_us += duration_us
        self.samples += samples
        self.longest_task_us = max(self.longest_task_us, duration_us)
        self.task_durations.add(duration_us)

    def samples_took(self, times: Sequence[int]) -> None:
        """Counts how long samples took, as a worker tells. Raises ProtocolError."""
        if times:
            try:
                self.sample_durations.include(times)
            except ValueError as error:
                raise ProtocolError(f"Filled.sample_times: {error}") from None

    def take_longest_task_us(self) -> int:
        """Returns how long the longest task since the last call took."""
        longest, self.longest_task_us = self.longest_task_us, 0
        return longest
