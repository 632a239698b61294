"""What figures were measured on is named with them."""

from __future__ import annotations

import re

from prefetchd_demo.machine import describe_machine


def test_the_machine_its_versions_and_its_load_are_in_one_line():
    wanted = r".+, \d+ CPUs, \d+ GiB; Linux \S+, Python 3\.\d+\.\S+, torch \S+, prefetchd \S+; load average \d+\.\d"
    assert re.fullmatch(wanted, describe_machine())
