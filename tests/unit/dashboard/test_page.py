"""The page as text: what is in it, and that users' strings cannot leave their place."""

from __future__ import annotations

import json
import re

from prefetchd.dashboard.document import document
from prefetchd.dashboard.page import MEDIA_TYPES, frozen_page, live_page, static_file
from prefetchd.status.status_object import status_object
from tests.unit.cli.examples import report, stream

HOSTILE = "</script><script>alert(1)</script><!--\"'&"


def frozen(name: str = "train") -> str:
    status = status_object(report(stream(name=name)))
    details = {name: {"status": status["streams"][0], "ended": False, "history": [], "lanes": []}}
    return frozen_page(document(status, details, socket="/s", made_unix_s=1.0), f"report of {name}")


def test_frozen_page_holds_its_document_and_nothing_of_other_hosts():
    page = frozen()
    data = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', page, re.S)
    assert data is not None
    assert json.loads(data[1])["details"]["train"]["status"]["verdict"]["limit"] == "waiting"
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "http://" not in re.sub(r"https?://(www\.w3\.org|github\.com/leeoniya)\S*", "", page)


def test_names_cannot_end_the_document_s_element():
    plain, hostile = frozen("train"), frozen(HOSTILE)
    assert plain.count("<script") == hostile.count("<script")
    assert plain.count("</script") == hostile.count("</script")


def test_page_code_sets_no_markup():
    for name, kind in MEDIA_TYPES.items():
        if kind == "text/javascript" and not name.startswith("uplot"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", static_file(name))


def test_live_page_asks_for_each_part_with_its_token():
    page = live_page("a&b")
    for name in MEDIA_TYPES:
        assert f"static/{name}?token=a&amp;b" in page


def test_chart_library_has_its_licence_and_is_small():
    assert "MIT" in static_file("uplot.LICENSE.txt")
    assert len(static_file("uplot.min.js")) < 100_000
