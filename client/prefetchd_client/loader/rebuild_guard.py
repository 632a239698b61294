"""RebuildGuard raises an error where accelerate would make a plain DataLoader of a loader: nobody would notice that.
Decision 0050 has the reasons."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from prefetchd.wire.errors import CallerError

_HF_TRAINER = "transformers.trainer"
_REBUILDING = ("skip_first_batches", "prepare_data_loader")


class RebuildGuard(DataLoader[Any]):
    """Raises CallerError where accelerate is about to make another loader of this one."""

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Raises CallerError: accelerator.prepare() reads this attribute before anything else."""
        if _is_called_by(_HF_TRAINER):
            raise CallerError(
                "HF Trainer would make a plain DataLoader of this loader; allowed: a Trainer whose "
                "get_train_dataloader() and get_eval_dataloader() take its own loaders over, in two lines each "
                "(docs/trainers.md, HF Trainer), and DataLoader where it makes those"
            )
        raise CallerError(
            "accelerator.prepare() would make a plain DataLoader of this loader; allowed: "
            "prefetchd_client.integrations.accelerate.prepare(accelerator, loader)"
        )

    @property
    def multiprocessing_context(self) -> Any:
        """DataLoader's attribute, which accelerate's functions hand on to the loader that they make. They ask nothing
        else that others do not ask as well, so they are known by their names."""
        frame: FrameType | None = sys._getframe(1)
        # Until Python 3.11 a comprehension has a frame of its own.
        for _ in range(2):
            if frame is None:
                break
            name = frame.f_code.co_name
            if name in _REBUILDING and frame.f_globals.get("__name__") == "accelerate.data_loader":
                raise CallerError(
                    f"{name}() would make a plain DataLoader of this loader; allowed: to prepare it first with "
                    "prefetchd_client.integrations.accelerate.prepare(accelerator, loader). Its position is set with "
                    "load_state_dict(), which loads nothing of what it skips"
                )
            frame = frame.f_back
        return DataLoader.multiprocessing_context.fget(self)  # type: ignore[attr-defined]

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        DataLoader.multiprocessing_context.fset(self, context)  # type: ignore[attr-defined]


def _is_called_by(module: str) -> bool:
    """Returns True when a function of the module is among the callers of our caller."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False
