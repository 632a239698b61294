"""Whose words a trainer's stderr says they are."""

from __future__ import annotations

from prefetchd_client.session.worker_output import print_output

from prefetchd.wire.messages import Output


def test_each_line_is_under_the_name_of_who_printed_it(capsys):
    print_output(Output(3, "one\ntwo", dropped=4))
    print_output(Output(0, "as the dataset is loaded"))
    assert capsys.readouterr().err.splitlines() == [
        "[prefetchd worker 3] one",
        "[prefetchd worker 3] two",
        "[prefetchd worker 3] ... 4 lines left out (see `prefetchd logs`)",
        "[prefetchd zygote] as the dataset is loaded",
    ]


def test_the_daemon_s_own_words_are_nobody_else_s(capsys):
    print_output(Output(0, "prefetchd: stream 'train': there are no remote workers", dropped=2))
    print_output(Output(3, "prefetchd: said by a worker"))
    assert capsys.readouterr().err.splitlines() == [
        "prefetchd: stream 'train': there are no remote workers",
        "[prefetchd zygote] ... 2 lines left out (see `prefetchd logs`)",
        "[prefetchd worker 3] prefetchd: said by a worker",
    ]


def test_output_of_a_topic_is_printed_once(capsys):
    for _ in range(2):
        print_output(Output(0, "prefetchd: once", topic="test_output_of_a_topic"))
    assert capsys.readouterr().err == "prefetchd: once\n"
