"""Reports samples that were left out or replaced: each is counted, and each index named once. Pure."""

from __future__ import annotations

from prefetchd.daemon.engine.commands import Command, Log, Send
from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.wire.messages import BadSamples, BadSamplesNamed

MOST_NAMED = 1000
"""The number of a stream's indices that are named; the rest is only counted."""

TOLD_LATER = 100
"""The number of named samples, the latest, that a trainer is told which comes later."""

MOST_REMEMBERED = 4096
"""The number of samples that are remembered, so that one is not counted again when its batch is made again."""


class BadSampleNews:
    """Takes the workers' messages about bad samples."""

    def __init__(self, commands: list[Command]) -> None:
        self._commands = commands

    def take(self, worker: Worker, piece: Piece, message: BadSamples) -> None:
        stream = worker.stream
        texts = [text.decode("utf-8", "replace") for text in message.texts]
        for (row, attempt, index, *_), text in zip(message.samples, [*texts, *[""] * len(message.samples)]):
            sample = (*piece.batch.position, row, attempt)
            if sample in stream.bad_samples:
                continue
            stream.bad_samples[sample] = None
            while len(stream.bad_samples) > MOST_REMEMBERED:
                del stream.bad_samples[next(iter(stream.bad_samples))]
            stream.counters.bad_samples += 1
            self._name(stream, (*piece.batch.position, row, worker.number), index, text)

    def _name(self, stream: StreamState, sample: tuple[int, int, int, int], index: int, text: str) -> None:
        if index in stream.named_indices or len(stream.named_indices) > MOST_NAMED:
            return
        stream.named_indices.add(index)
        if len(stream.named_indices) > MOST_NAMED:
            text = f"more than {MOST_NAMED} samples are bad: further ones are counted only (`prefetchd status`)"
        line = Log.line("warning", "bad sample", stream=stream.name, worker=sample[3], index=index, text=text)
        self._commands.append(line)
        stream.bad_named.append((sample, text.encode("utf-8", "replace")))
        del stream.bad_named[:-TOLD_LATER]
        named = BadSamplesNamed((sample,), (stream.bad_named[-1][1],))
        self._commands += [Send(session, named) for session in stream.consumers]


def named_before(stream: StreamState) -> BadSamplesNamed | None:
    """Returns what a trainer that comes now is to be told of bad samples; None where there is nothing."""
    if not stream.bad_named:
        return None
    samples, texts = zip(*stream.bad_named)
    return BadSamplesNamed(samples, texts, before=True)
