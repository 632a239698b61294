"""The user's code raises in a worker: the trainer gets that very exception, told where it was, and goes on after it."""

from __future__ import annotations

import traceback

import pytest
import torch
from prefetchd_client import PrefetchLoader

from prefetchd.daemon.engine.stream.blame import BLAMED_AFTER, SUSPECTED_AFTER
from prefetchd.wire.errors import RemoteError, StreamFailedError, WorkerDiedError
from tests.scenario import bad_datasets as bad
from tests.scenario.waiting import stream_when

pytestmark = pytest.mark.usefixtures("shared_daemon")


def raised_by(misbehave, **arguments):
    """What next() raises for the batch of sample 5, the second of six; the batches around it come as always."""
    arguments = {"batch_size": 4, "buffer": 6, **arguments}
    with PrefetchLoader(bad.Raising(misbehave), **arguments) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(BaseException) as caught:
            next(iterator)
        assert [batch.tolist() for batch in iterator] == [list(range(at, at + 4)) for at in range(8, 24, 4)]
    return caught.value


def shown(error):
    """What Python prints when nobody catches the error."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("misbehave", "kind", "text"),
    [
        (bad.value_error, ValueError, "pixel 7 is broken"),
        (bad.key_error, KeyError, "'label'"),
        (bad.many_arguments, bad.ManyArguments, "a.csv:12"),
        (bad.decode_error, UnicodeDecodeError, "invalid start byte"),
        (bad.own_decode_error, bad.DecodeFailed, "invalid start byte in a.txt"),
        (bad.os_error, FileNotFoundError, "[Errno 2] No such file or directory"),
        (bad.chained, RuntimeError, "cannot decode"),
        (bad.timeout_error, TimeoutError, "the object store does not answer"),
        (bad.assertion, AssertionError, ""),
        (bad.recurse, RecursionError, "maximum recursion depth exceeded"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_sample_raises_and_the_next_batch_follows(misbehave, kind, text):
    error = raised_by(misbehave)
    assert type(error) is kind
    assert text in str(error)
    assert "dataset[5], epoch 0, step 1" in shown(error), "which sample it was"
    assert misbehave.__name__ in shown(error), "the worker's traceback"
    assert "in __getitem__" in shown(error)


def test_the_state_of_an_exception_comes_with_it():
    error = raised_by(bad.many_arguments)
    assert (error.path, error.line) == ("a.csv", 12)
    error = raised_by(bad.decode_error)
    assert (error.encoding, error.object, error.start) == ("utf-8", b"ab\xff", 2)
    assert raised_by(bad.own_decode_error).path == "a.txt"
    assert raised_by(bad.with_notes).note == "an attribute"


def test_an_os_error_names_its_file():
    error = raised_by(bad.os_error)
    assert (error.args, error.errno, error.filename) == ((2, "No such file or directory"), 2, "a.png")
    assert str(error) == "[Errno 2] No such file or directory: 'a.png'"


def test_what_an_exception_was_raised_from_is_shown():
    text = shown(raised_by(bad.chained))
    assert "pixel 7 is broken" in text
    assert "cannot decode" in text


@pytest.mark.parametrize(
    ("misbehave", "text"), [(bad.with_a_lock, "HoldsALock: with a lock"), (bad.local_class, "Local: nobody can import")]
)
def test_an_exception_that_cannot_be_pickled_is_told_by_name(misbehave, text):
    error = raised_by(misbehave)
    assert type(error) is RemoteError
    assert text in str(error)
    assert "dataset[5]" in shown(error)
    assert misbehave.__name__ in shown(error)


def test_an_exception_without_a_text_is_told_by_its_type():
    error = raised_by(bad.without_text)
    assert type(error) is bad.HasNoText
    assert "HasNoText: <exception str() failed>" in shown(error)
    assert "dataset[5]" in shown(error)


def test_an_exception_that_cannot_be_formatted_is_told_by_its_text():
    error = raised_by(bad.without_notes)
    assert (type(error), str(error)) == (bad.HasNoNotes, "with notes that raise")
    assert "dataset[5]" in str(error.__cause__)
    assert "without_notes" in str(error.__cause__), "the worker's traceback"


def test_stop_iteration_does_not_end_the_epoch():
    error = raised_by(bad.stop_iteration)
    assert isinstance(error, RuntimeError)
    assert "StopIteration: no more" in str(error)


def test_very_long_and_very_odd_messages_arrive():
    error = raised_by(bad.long_message)
    assert "long long" in str(error)
    assert "dataset[5]" in shown(error)
    assert "surrogate" in str(raised_by(bad.unlucky_bytes))


def test_an_exception_in_a_batch_of_rows_that_has_begun():
    """The layout is known when sample 5 raises: its batch was cut into rows, and one of them fails."""
    for _ in range(2):
        with PrefetchLoader(bad.Raising(bad.value_error, bad=21), batch_size=4, buffer=6) as loader:
            iterator = iter(loader)
            for _ in range(5):
                next(iterator)
            with pytest.raises(ValueError, match="pixel 7"):
                next(iterator)
            with pytest.raises(StopIteration):
                next(iterator)


def test_every_epoch_raises_again():
    with PrefetchLoader(bad.Raising(bad.value_error, bad=0), batch_size=8, buffer=6) as loader:
        for epoch in range(3):
            iterator = iter(loader)
            with pytest.raises(ValueError) as caught:
                next(iterator)
            assert f"epoch {epoch}, step 0" in shown(caught.value)
            assert len(list(iterator)) == 2


def test_many_batches_fail_in_a_row():
    with PrefetchLoader(
        bad.Raising(bad.value_error, bad=bad.AllButZero(), length=200), batch_size=1, buffer=200
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        for index in range(1, 200):
            with pytest.raises(ValueError, match="pixel 7") as caught:
                next(iterator)
            assert f"dataset[{index}]" in shown(caught.value)
        with pytest.raises(StopIteration):
            next(iterator)


# --- collate_fn, worker_init_fn, __len__ ---


def test_collate_fn_raises():
    error = raised_by(_nothing, collate_fn=bad.collate_that_raises_for_five)
    assert type(error) is ArithmeticError
    assert "collate_fn, epoch 0, step 1" in shown(error)
    assert "collate_that_raises_for_five" in shown(error)


def test_a_batch_that_cannot_be_pickled():
    with PrefetchLoader(bad.Raising(_nothing), batch_size=4, buffer=6, collate_fn=bad.collate_unpicklable) as loader:
        iterator = iter(loader)
        assert next(iterator) == [0, 1, 2, 3]
        with pytest.raises(TypeError, match="lock") as caught:
            next(iterator)
        assert "pickling the batch, epoch 0, step 1" in shown(caught.value)
        assert next(iterator) == [8, 9, 10, 11]


def test_default_collate_refuses_the_samples():
    with (
        PrefetchLoader(bad.Strings([1] * 8), batch_size=4, buffer=6, collate_fn=_collate_objects) as loader,
        pytest.raises(TypeError, match="default_collate: batch must contain") as caught,
    ):
        next(iter(loader))
    assert "collate_fn, epoch 0, step 0" in shown(caught.value)


def test_worker_init_fn_raises():
    with PrefetchLoader(
        bad.Raising(_nothing),
        batch_size=4,
        num_workers=1,
        buffer=6,
        worker_init_fn=bad.init_that_raises,
        stream="initless",
    ) as loader:
        for _ in range(2):
            with pytest.raises(StreamFailedError) as caught:
                next(iter(loader))
            assert "worker_init_fn(" in str(caught.value)
            assert "reaches no database" in str(caught.value)
            assert "init_that_raises" in shown(caught.value)
            assert "ConnectionError" in shown(caught.value)
    with PrefetchLoader(bad.Raising(_nothing), batch_size=4, buffer=6, stream="initless") as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2, 3], "the name can be used again"


def test_worker_init_fn_ends_the_worker():
    with (
        PrefetchLoader(
            bad.Raising(_nothing), batch_size=4, num_workers=1, worker_init_fn=bad.init_that_exits, timeout=60
        ) as loader,
        pytest.raises((StreamFailedError, WorkerDiedError), match="exited with 7"),
    ):
        next(iter(loader))


def test_the_dataset_s_length_raises():
    with pytest.raises(FileNotFoundError, match=r"index\.json is not there"):
        PrefetchLoader(bad.LengthRaises(), batch_size=4)


# --- a program that does not load ---

ONLY_HERE = """
import os
if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
    raise ImportError("this module cannot be imported without a GPU")
from tests.scenario.datasets import Numbers
class Here(Numbers):
    pass
"""


@pytest.mark.usefixtures("executed")
def test_a_module_that_the_workers_cannot_import(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(ONLY_HERE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    from only_here import Here

    for _ in range(2):
        with PrefetchLoader(Here(8), batch_size=4, buffer=6, stream="only here") as loader:
            with pytest.raises(StreamFailedError, match="cannot be imported without a GPU") as caught:
                next(iter(loader))
            assert "only_here.py" in shown(caught.value)


@pytest.mark.usefixtures("executed")
def test_a_dataset_that_does_not_unpickle():
    with (
        PrefetchLoader(bad.Unloadable(8), batch_size=4, buffer=6) as loader,
        pytest.raises(StreamFailedError, match="PermissionError: the archive is locked") as caught,
    ):
        next(iter(loader))
    assert "__setstate__" in shown(caught.value)


# --- the worker itself goes ---


def test_a_worker_that_exits_once_is_replaced(tmp_path, shared_daemon):
    dataset = bad.Raising(bad.ExitOnce(tmp_path / "marker"), bad=5)
    with PrefetchLoader(dataset, batch_size=4, buffer=6, stream="exits once") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(24))
        stream_when(shared_daemon, "exits once", lambda stream: stream["worker_deaths"] == 1, "one death is counted")


@pytest.mark.parametrize(
    ("misbehave", "how"),
    [(bad.exit_now, "exited with 3"), (bad.segfault, "SIGSEGV"), (bad.leave, "exited with 1")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_sample_that_always_ends_its_worker_is_an_error_that_says_so(misbehave, how, shared_daemon):
    stream = f"always {misbehave.__name__}"
    # So long that the next epoch, where it would end workers again, is not begun.
    with PrefetchLoader(bad.Raising(misbehave, length=400), batch_size=4, buffer=6, stream=stream) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(WorkerDiedError) as caught:
            next(iterator)
        assert next(iterator).tolist() == [8, 9, 10, 11]
        needed = SUSPECTED_AFTER + BLAMED_AFTER
        told = stream_when(shared_daemon, stream, lambda stream: stream["worker_deaths"] >= needed)
    assert told["worker_deaths"] == needed, "another batch was blamed for some of them"
    assert how in str(caught.value)
    assert "dataset[5], epoch 0, step 1" in str(caught.value)


def _nothing() -> None:
    pass


def _collate_objects(samples):
    from torch.utils.data import default_collate

    return default_collate([object() for _ in samples])
