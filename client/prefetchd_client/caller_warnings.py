"""warn_caller shows a warning at the line of the user's code, however many calls of this package lie between."""

from __future__ import annotations

import os
import sys
import types
import warnings

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns on behalf of the first caller that is not of this package."""
    level, frame = 1, sys._getframe()
    found = caller_frame()
    while frame is not found and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def caller_frame(*directories: str) -> types.FrameType:
    """Returns the innermost frame whose code is neither in this package nor in one of the `directories`."""
    inner = (_PACKAGE, *(directory + os.sep for directory in directories))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame = frame.f_back
    return frame
