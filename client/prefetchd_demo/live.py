"""Live shows the demo's progress on the screen: a live bar on a terminal, else a line for whatever is done."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

MOST_BAR_CELLS, FEWEST_BAR_CELLS = 20, 6
TEXT_CELLS = 74
FRAMES_PER_S = 5


class Live:
    """Shows bars, one under the other; the last one moves. A context manager that gives the terminal back."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.heading("")

    def heading(self, text: str) -> None:
        """Ends the bars so far; what follows belongs to `text`, if it is not empty."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._bars.clear()
        if text:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, title: str, done: int, total: int, text: str) -> None:
        """Shows the bar `title`, which begins with the first call. `total` 0 means that nobody knows yet."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            if total and done >= total:
                self._console.print(f"  {title}  {text}", highlight=False, markup=False, soft_wrap=True)
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("  {task.description}", markup=False),
                BarColumn(max(FEWEST_BAR_CELLS, min(MOST_BAR_CELLS, self._console.width - TEXT_CELLS))),
                TextColumn("{task.fields[text]}", markup=False),
                console=self._console,
                refresh_per_second=FRAMES_PER_S,
            )
            self._progress.start()
        if title not in self._bars:
            self._bars[title] = self._progress.add_task(title, total=total or None, text=text)
        self._progress.update(self._bars[title], completed=done, total=total or None, text=text)
