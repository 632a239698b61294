"""Runs the planner: a process of the stream's own that runs the sampler, so that neither daemon nor trainer has to.

    daemon                      planner
      Rebase  ---------------->           the trainer begins an epoch otherwise than was thought
      AskPlan ---------------->
              <---------------- Begun     states before the epoch and after its first batch; at its end
              <---------------- Planned   samples and keys of some batches; or PlanFailed

It can go forward only. Asked for an epoch that lies too far behind it ends, and the daemon starts another, which begins
again from the stream's program.
"""

from __future__ import annotations

import socket

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.framing import close_all, disclose, enclose, receive_with_fds, send
from prefetchd.wire.messages import (
    AT_END,
    AskPlan,
    Begun,
    Message,
    PlanFailed,
    Planned,
    Ready,
    Rebase,
)
from prefetchd.wire.remote_exception import encode_exception
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import IDLE, SAMPLING
from prefetchd.workers.program import Program
from prefetchd.workers.sampling import OutOfReach, PlannedEpoch, Sampling
from prefetchd.workers.user_code import UserCodeError, remote_exception
from prefetchd.workers.worker_status_writer import WorkerStatusWriter

KEYS_A_MESSAGE_BYTES = 48 * 1024


def run_planner(sock: socket.socket, spec: StreamSpec, program: Program, note: WorkerStatusWriter) -> None:
    """Serves `sock` until its end. Called once, in a process of its own."""
    sampling = Sampling(spec, program)
    note.phase(IDLE)
    kill_point("planner.started")
    send(sock, Ready())
    while True:
        message, fds = receive_with_fds(sock)
        if message is None:
            return
        message, fds = disclose(message, fds)
        close_all(fds)
        note.phase(SAMPLING)
        try:
            told = answers(sampling, message)
        except OutOfReach:
            # It cannot go back: the daemon starts another planner, which begins anew.
            return
        note.phase(IDLE)
        for answer in told:
            enclosed, beside = enclose(answer)
            kill_point("planner.answer.untold")
            send(sock, enclosed, beside)
            close_all(beside)


def answers(sampling: Sampling, message: Message) -> list[Message]:
    """Returns what a planner answers to a message, in order. Raises OutOfReach."""
    if isinstance(message, Rebase):
        sampling.rebase(message.epoch, message.sampler_epoch, message.states, message.attributes)
    if not isinstance(message, AskPlan):
        return []
    epoch, first = message.epoch, message.first_step
    planned = sampling.plan(epoch, first + message.steps)
    end = _end_of_message(planned, first, message.steps)
    ends = planned.ended and end >= len(planned.keys)
    # What is known of an epoch comes before the batches that it is about; its end only with the last of them.
    told: list[Message] = [
        Begun(epoch, stage, planned.sampler_epochs[stage], states, planned.attributes[stage])
        for stage, states in sorted(planned.states.items())
        if stage >= message.stage and (stage != AT_END or ends)
    ]
    if ends and planned.error is not None:
        step = len(planned.keys)
        told.append(PlanFailed(epoch, step, _encoded(planned.error, epoch, step)))
    samples, keys = tuple(planned.samples[first:end]), tuple(planned.keys[first:end])
    told.append(Planned(epoch, first, samples, keys, len(planned.keys) if ends else -1))
    return told


def _end_of_message(planned: PlannedEpoch, first: int, steps: int) -> int:
    """Returns the step behind the last whose keys fit into a message; the first one's may be as long as they are."""
    room = KEYS_A_MESSAGE_BYTES
    end = first
    for keys in planned.keys[first : first + steps]:
        room -= len(keys) + 8
        if room < 0 and end > first:
            break
        end += 1
    return end


def _encoded(error: Exception, epoch: int, step: int) -> bytes:
    failure = UserCodeError(f"sampler, epoch {epoch}, step {step}")
    failure.__cause__ = error
    return encode_exception(remote_exception(failure))
