"""Files that a program has open are compared with what they were when that was asked last."""

from __future__ import annotations

import os

from prefetchd_client.changes.held_files import HeldFiles
from prefetchd_client.fingerprint.live_state import stamp_of


def test_change_is_seen_once(tmp_path):
    path = str(tmp_path / "file")
    (tmp_path / "file").write_text("1")
    held = HeldFiles({path: stamp_of(path)})
    assert not held.have_changed()
    (tmp_path / "file").write_text("22")
    assert held.have_changed()
    assert not held.have_changed()


def test_replaced_and_removed_files_are_changes(tmp_path):
    path = str(tmp_path / "file")
    (tmp_path / "file").write_text("1")
    held = HeldFiles({path: stamp_of(path)})
    status = os.stat(path)
    (tmp_path / "new").write_text("2")
    os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(tmp_path / "new", path)
    assert held.have_changed(), "another file of the same size and time"
    os.unlink(path)
    assert held.have_changed()
    assert not held.have_changed()


def test_no_files_never_change():
    assert not HeldFiles().have_changed()
