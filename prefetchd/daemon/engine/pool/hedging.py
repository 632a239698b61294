"""Hedging takes a batch back from another machine in time: what does not come in time is made here. Pure. The rules,
whose reasons are in decision 0120:

1. A batch that nobody wants any more is taken back at once: it keeps a slot.
2. A batch is needed when its trainer will come to it: after so many batches as lie before it, at the pace at which they
   were taken lately; what the trainer may have taken since it last told how far it is lies before it no more. It is
   made here in the time that all workers of the stream take for it together, once they have done what they have.
3. It is taken back when it is overdue, and needed before it could be made here twice: late enough that most answers
   arrive, and early enough to be made here.
4. As long as it is not known how long such a task takes, it is taken back when a call of next() waits for it.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.remote_work import RemoteTask, RemoteWork
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState


def due(stream: StreamState, work: RemoteWork, now_s: float) -> list[RemoteTask]:
    """Returns the tasks that are to be taken back now."""
    return [
        task
        for worker in work.workers.values()
        for task in worker.tasks.values()
        if not task.is_revoked and _is_due(stream, work, task, now_s)
    ]


def _is_due(stream: StreamState, work: RemoteWork, task: RemoteTask, now_s: float) -> bool:
    batch = task.piece.batch
    if batch.cancelled:
        return True
    if not work.arrivals.are_known:
        return stream.window.is_awaited(batch, urgent=True)
    if now_s - task.given_s <= work.arrivals.overdue_after_s:
        return False
    return needed_in_s(stream, task, now_s) <= busy_for_s(stream) + 2 * made_here_in_s(stream, batch.rows)


def needed_in_s(stream: StreamState, task: RemoteTask, now_s: float) -> float:
    """Returns when a trainer comes to the task's batch, in seconds from now (rule 2)."""
    lead = stream.window.lead(task.piece.batch.position)
    if not lead:
        return 0.0
    paces = [each.pace for each in stream.consumers.values() if each.pace.lately(now_s) > 0.0]
    needed = [max(0.0, lead - pace.untold(now_s)) / pace.lately(now_s) for pace in paces]
    return min(needed, default=float("inf"))


def busy_for_s(stream: StreamState) -> float:
    """Returns how long the stream's workers have to do with the tasks that they have, at most."""
    rows = sum(piece.rows for worker in stream.workers.values() for piece in worker.tasks.values())
    return stream.task_sizes.row_s * rows / _workers(stream)


def made_here_in_s(stream: StreamState, rows: int) -> float:
    """Returns how long this machine takes for a batch of so many rows, which is cut among its workers unless it is
    made whole."""
    return stream.task_sizes.row_s * rows / (1 if stream.claims.whole_only else _workers(stream))


def _workers(stream: StreamState) -> int:
    return max(1, sum(each.stage is WorkerStage.READY for each in stream.workers.values()))
