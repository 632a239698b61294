"""Helping lets idle workers load samples of a batch that one worker makes as a whole. Pure. The rules, whose reasons
are in decision 0117:

1. Only workers help that have nothing else to do, and are from the owner's zygote: another may have another program.
2. A batch is helped at once when it is being measured, or once its task has run for HELP_AFTER_S when a call of next()
   waits for it: then there is nothing else to be made. Each worker helps once with a task.
3. Not where a batch's place decides its worker, nor where a sample is known to end workers, or has ended some.
4. A helper's task is no piece of its batch: nothing waits for it, and nothing is lost with it. Where samples cannot be
   handed over, or that takes long, it says so, and the stream is not helped any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.wire.messages import CHECK_FILES, COMPARE, DIGEST, HELP

HELP_AFTER_S = 0.05


def helpers(stream: StreamState, now_s: float) -> Iterable[tuple[Worker, Worker, Piece]]:
    """Yields (helper, owner, task) for each worker of the stream that is to help now."""
    if stream.unhelpful or stream.shard_affinity is not None or stream.shards:
        return
    owners = [each for each in stream.workers.values() if _is_helped(stream, each, now_s)]
    for owner in owners:
        task, piece = next(iter(owner.tasks.items()))
        for worker in stream.workers.values():
            is_idle = worker.stage is WorkerStage.READY and not worker.busy
            if is_idle and worker.host is owner.host and worker.number not in piece.helpers:
                piece.helpers += (worker.number,)
                yield worker, owner, Piece(piece.batch, 0, piece.batch.rows, owner_task=task)


def awaits_help(stream: StreamState) -> bool:
    """True while a worker may soon be helped, and others idle."""
    if stream.unhelpful or stream.shard_affinity is not None or stream.shards:
        return False
    return any(map(_may_be_helped, stream.workers.values())) and any(
        each.stage is WorkerStage.READY and not each.busy for each in stream.workers.values()
    )


def _is_helped(stream: StreamState, owner: Worker, now_s: float) -> bool:
    if not _may_be_helped(owner):
        return False
    batch = next(iter(owner.tasks.values())).batch
    if batch.cancelled or batch.error is not None or stream.blame.is_about(batch.position):
        return False
    if batch.grant is None:
        return True
    return now_s - owner.head_since_s >= HELP_AFTER_S and stream.window.is_awaited(batch, urgent=True)


def _may_be_helped(owner: Worker) -> bool:
    piece = next(iter(owner.tasks.values()), None)
    if piece is None or owner.stage is not WorkerStage.READY or piece.kind in (DIGEST, CHECK_FILES, COMPARE, HELP):
        return False
    return piece.batch.is_whole_task and piece.batch.rows > 1
