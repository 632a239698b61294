"""What `prefetchd dashboard` prints beside its URL. The page: tests/dashboard."""

from __future__ import annotations

from prefetchd.cli import dashboard


def test_open_without_a_desktop_is_one_clear_line(monkeypatch, capsys):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    dashboard._open("http://127.0.0.1:1/?token=x")
    assert capsys.readouterr().err == "no browser could be opened here: open the URL yourself\n"
