"""Names the versions of all layouts that a ring consists of: a daemon adopts rings of its own versions alone."""

from __future__ import annotations

from prefetchd.wire import program_layout, segment_layout, slot_layout

LAYOUTS = {
    "ring": segment_layout.LAYOUT_VERSION,
    "batch": slot_layout.LAYOUT_VERSION,
    "program": program_layout.LAYOUT_VERSION,
}
