"""prefetchd doctor --script: somebody's script, whose loaders are run with DataLoader and with PrefetchLoader."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

HEAD = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, length):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return {"row": torch.full((3,), float(index)), "index": index}
"""


def check(tmp_path, script, *arguments):
    """(exit code, what was said on stdout, on stderr) with sixteen batches an epoch."""
    file = tmp_path / "train.py"
    file.write_text(HEAD + textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "-m", "prefetchd", "doctor", "--script", str(file), "--", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    left = [name for at in (tmp_path, "/tmp") for name in os.listdir(at) if name.startswith("prefetchd-check-")]
    assert not left, "its daemon's directory is gone"
    return done.returncode, done.stdout, done.stderr


def reports(said):
    """What was said of each loader, in the order of the script's lines."""
    paragraphs = [paragraph.splitlines() for paragraph in said.strip("\n").split("\n\n")]
    return [lines for lines in paragraphs if lines[0].startswith("train.py:")]


def test_loaders_are_told_by_the_lines_that_iterate_over_them(tmp_path):
    code, said, progress = check(
        tmp_path,
        """
        if __name__ == "__main__":
            epochs = int(sys.argv[1])
            training = DataLoader(Rows(400), 4, shuffle=True, num_workers=2)
            seeded = DataLoader(Rows(400), 4, shuffle=True, generator=torch.Generator().manual_seed(3))
            for epoch in range(epochs):
                print("batches:", sum(1 for _ in training), flush=True)
                for batch in seeded:
                    pass
                for batch in DataLoader(Rows(20), 4):
                    pass
        """,
        "2",
    )
    assert said.startswith("batches: 16\nbatches: 16\n"), "the script's own epochs are cut short"
    first, second, third = reports(said)
    assert first[0].split()[0].startswith("train.py:")
    assert "batch_size=4, sampler=RandomSampler, num_workers=2" in first[0]
    assert first[1].startswith("  differs: batch 0: batch['row'] has other values")
    assert first[2].startswith("  shuffled in another order")
    assert second[1] == "  same: 16 batches are equal"
    assert third[1] == "  same: 5 batches are equal"
    for report in (first, second, third):
        assert sum(line.startswith(("  DataLoader ", "  PrefetchLoader ")) for line in report) == 2
    assert all("the script takes" in report[-1] for report in (first, second))
    assert not any("the script takes" in line for line in third), "five batches tell nothing of what one takes"
    assert "%" not in said, "what is told was measured"
    assert code == 0, "an order of our own is no fault"
    assert progress.count("both ways") == 3


def test_what_is_not_the_same_is_told_and_in_the_exit_code(tmp_path):
    code, said, _ = check(
        tmp_path,
        """
        import os
        trainer = os.getpid()

        class Telling(Rows):
            def __getitem__(self, index):
                # Of a fork, as the comparison makes them; a worker has another parent.
                return float(index) if trainer in (os.getpid(), os.getppid()) else index

        if __name__ == "__main__":
            for batch in DataLoader(Telling(8), 4):
                pass
        """,
    )
    (report,) = reports(said)
    assert report[1] == "  differs: batch 0: batch has the dtype torch.int64, with DataLoader torch.float64"
    assert code == 3


def test_draws_of_samples_are_told_and_no_fault(tmp_path):
    """Documented: each sample has seeds of its own. Whether it draws is found out by another seed."""
    code, said, _ = check(
        tmp_path,
        """
        import os
        import random
        import numpy
        trainer = os.getpid()

        class Drawn(Rows):
            def __getitem__(self, index):
                return index + torch.rand(()) + random.random() + numpy.random.random()

        class InWorkers(Rows):
            def __getitem__(self, index):
                return float(index) + (trainer not in (os.getpid(), os.getppid()))

        if __name__ == "__main__":
            for batch in DataLoader(Drawn(8), 4):
                pass
            generator = torch.Generator().manual_seed(3)
            for batch in DataLoader(Drawn(8), 4, shuffle=True, generator=generator, num_workers=2):
                pass
            if len(sys.argv) > 1:
                for batch in DataLoader(InWorkers(8), 4):
                    pass
        """,
    )
    for report in reports(said):
        assert report[1] == "  differs: batch 0: batch has other values"
        assert report[2].startswith("  what is random is drawn from seeds of each sample's own")
    assert len(reports(said)) == 2
    assert code == 0, said
    code, said, _ = check(tmp_path, (tmp_path / "train.py").read_text().removeprefix(HEAD), "more")
    *_, third = reports(said)
    assert third[1] == "  differs: batch 0: batch has other values"
    assert not any("what is random" in line for line in third), "it draws nothing"
    assert code == 3


def test_errors_of_the_dataset_are_compared_too(tmp_path):
    code, said, _ = check(
        tmp_path,
        """
        class Raising(Rows):
            def __getitem__(self, index):
                if index == 9:
                    raise ValueError("no row 9")
                return index

        if __name__ == "__main__":
            try:
                for batch in DataLoader(Raising(40), 4):
                    pass
            except ValueError:
                pass
        """,
    )
    (report,) = reports(said)
    assert report[1:3] == ["  DataLoader raised ValueError: no row 9", "  PrefetchLoader did so, too"]
    assert code == 0


def test_a_script_that_fails_or_has_no_loader(tmp_path):
    code, said, progress = check(tmp_path, "for _ in DataLoader(Rows(8), 4): pass\nraise RuntimeError('no network')")
    assert code == 1
    assert "RuntimeError: no network" in progress
    assert "same: 2 batches are equal" in said, "what was seen is told all the same"
    code, _, progress = check(tmp_path, "sys.exit(0)")
    assert code == 1
    assert "the script has iterated over no DataLoader" in progress


def test_it_ends_an_endless_script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(HEAD + "loader = DataLoader(Rows(8), 4)\nwhile True:\n    for batch in loader:\n        pass\n")
    command = [sys.executable, "-m", "prefetchd", "doctor", "--seconds", "1", "--script", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert "same: 2 batches are equal" in done.stdout


def test_loaders_of_other_kinds_at_one_line_are_checked_too(tmp_path):
    code, said, progress = check(
        tmp_path,
        """
        import os
        trainer = os.getpid()

        class Telling(Rows):
            def __getitem__(self, index):
                # Of a fork, as the comparison makes them; a worker has another parent.
                return float(index) if trainer in (os.getpid(), os.getppid()) else index

        def run(loader):
            for batch in loader:
                pass

        if __name__ == "__main__":
            for fold in range(3):
                run(DataLoader(Rows(8), 4))
            run(DataLoader(Telling(8), 4))
            for rows in range(20, 30):
                run(DataLoader(Rows(rows), 4))
        """,
    )
    same, other, *rest = reports(said)
    assert same[1] == "  same: 2 batches are equal"
    assert other[1].startswith("  differs: batch 0: batch has the dtype")
    assert len(rest) == 2, "a sweep of ever other lengths ends some time"
    assert rest[-1][-1] == "  not checked: 8 more kinds of loaders at this line"
    assert progress.count("both ways") == 4
    assert code == 3


def test_a_script_s_own_exit_is_a_failure_if_it_says_so(tmp_path):
    loop = "for _ in DataLoader(Rows(8), 4): pass\n"
    code, said, progress = check(tmp_path, loop + "sys.exit('training failed')")
    assert code == 1
    assert "training failed" in progress.splitlines()
    assert "the script exited: training failed" in said
    code, said, _ = check(tmp_path, loop + "sys.exit(7)")
    assert code == 1
    assert "the script exited with code 7" in said


def test_what_a_dataset_remembers_is_the_same_for_both_and_for_the_script(tmp_path):
    """Found as a "differs" of a dataset that the first run had advanced, and of a script that began with its end."""
    code, said, _ = check(
        tmp_path,
        """
        from torch.utils.data import IterableDataset

        class Resuming(IterableDataset):
            def __init__(self):
                self.at = 0
            def __iter__(self):
                for self.at in range(self.at, self.at + 40):
                    yield self.at

        if __name__ == "__main__":
            for batch in DataLoader(Resuming(), 4):
                print("first:", batch.tolist())
                break
            sys.exit(0)
        """,
    )
    assert said.startswith("first: [0, 1, 2, 3]\n"), "as without us"
    (report,) = reports(said)
    assert report[1] == "  same: 10 batches are equal"
    assert code == 0


def test_what_a_process_dies_of_is_told(tmp_path):
    code, said, _ = check(
        tmp_path,
        """
        import os, signal
        trainer = os.getpid()

        class Deadly(Rows):
            def __getitem__(self, index):
                if os.getpid() != trainer:
                    os.kill(os.getpid(), signal.SIGKILL)
                return index

        if __name__ == "__main__":
            for batch in DataLoader(Deadly(8), 4):
                pass
        """,
    )
    (report,) = reports(said)
    assert report[1] == "  not compared: the run with DataLoader: its process has died"
    assert report[2].startswith("  PrefetchLoader raised WorkerDiedError: dataset[0]")
    assert code == 3


def test_samples_that_only_the_script_s_process_can_make_are_told(tmp_path):
    """As those are that are on CUDA. Both ways are run in forks, and neither of them could tell."""
    code, said, _ = check(
        tmp_path,
        """
        import os
        trainer = os.getpid()

        class Bound(Rows):
            def __getitem__(self, index):
                if os.getpid() != trainer:
                    raise RuntimeError("not in a forked process")
                return index

        if __name__ == "__main__":
            for batch in DataLoader(Bound(8), 4):
                pass
        """,
    )
    (report,) = reports(said)
    assert report[1] == "  DataLoader raised RuntimeError: not in a forked process in a fork"
    assert report[2].startswith("  the script itself goes on")
    assert code == 3


def test_persistent_workers_of_the_script_go_on(tmp_path):
    code, said, _ = check(
        tmp_path,
        """
        if __name__ == "__main__":
            loader = DataLoader(Rows(40), 4, num_workers=1, persistent_workers=True)
            for batch in loader:
                pass
            workers = loader._iterator._workers
            print("second:", sum(1 for _ in loader))
            print("alive:", workers[0].is_alive() and loader._iterator._workers is workers)
        """,
    )
    assert said.startswith("second: 10\nalive: True\n")
    assert [report[1] for report in reports(said)] == ["  same: 10 batches are equal"] * 2
    assert code == 0


def test_a_temporary_directory_may_have_a_long_name(tmp_path):
    directory = tmp_path / ("t" * 100)
    directory.mkdir()
    code, said, _ = check(directory, "for batch in DataLoader(Rows(8), 4): pass")
    assert code == 0
    assert "same: 2 batches are equal" in said
