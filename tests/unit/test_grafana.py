"""examples/grafana: every metric that it names is one of ours, and every expression parses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DIRECTORY = Path(__file__).resolve().parents[2] / "examples" / "grafana"
DASHBOARD = json.loads((DIRECTORY / "dashboard.json").read_text("utf-8"))
(GROUP,) = yaml.safe_load((DIRECTORY / "alerts.yaml").read_text("utf-8"))["groups"]
RULES = GROUP["rules"]
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERIES = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
ALERTS = [(rule["alert"], rule["expr"]) for rule in RULES]
# What Grafana puts in the place of its variables.
VARIABLES = {"$__rate_interval": "1m", "$job": "prefetchd", "$stream": ".*"}
OF_PROMETHEUS = {"up"}


def known_metrics() -> dict[str, set[str]]:
    """Every name on the wire, with its labels, by the table of docs/metrics.md, which a test holds to a real scrape."""
    text = (DIRECTORY.parents[1] / "docs" / "metrics.md").read_text("utf-8")
    found = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", text, re.M):
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(kind, [""]):
            found[name + suffix] = {*re.findall(r"\w+", labels)} | ({"le"} if suffix == "_bucket" else set())
    return found


def written_out(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


@pytest.mark.parametrize(("where", "expression"), PANELS + ALERTS, ids=lambda value: value[:40])
def test_expression_parses_and_names_our_metrics_and_labels(where, expression):
    parser = pytest.importorskip("promql_parser")
    parser.parse(written_out(expression))
    known = known_metrics()
    for name, matchers in re.findall(r"\b(prefetchd_\w+|up)\b(?:\{(.*?)\})?", expression):
        assert name in known or name in OF_PROMETHEUS, (where, name)
        labels = {*re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)} - {"job", "instance"}
        assert labels <= known.get(name, set()), (where, name, labels)


@pytest.mark.parametrize("query", QUERIES)
def test_query_of_a_variable_names_our_metrics(query):
    (name,) = re.findall(r"prefetchd_\w+", query)
    assert name in known_metrics()


def test_legend_names_labels_that_its_expression_keeps():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            kept = re.search(r"by \((.*?)\)", target["expr"])
            (metric,) = re.findall(r"prefetchd_\w+", target["expr"])
            names = {*re.findall(r"\w+", kept[1])} if kept else known_metrics()[metric]
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= names, target


def test_alerts_are_listed_with_a_summary():
    text = (DIRECTORY / "README.md").read_text("utf-8")
    assert re.findall(r"^\| (Prefetchd\w+) \|", text, re.M) == [rule["alert"] for rule in RULES]
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in RULES)


def test_compose_file_mounts_what_there_is():
    services = yaml.safe_load((DIRECTORY / "compose.yaml").read_text("utf-8"))["services"]
    mounts = [each.split(":")[0] for service in services.values() for each in service["volumes"]]
    assert all((DIRECTORY / each).is_file() for each in mounts), mounts
    scraped = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]["static_configs"]
    assert scraped[0]["targets"][0] in (DIRECTORY / "README.md").read_text("utf-8")


def test_promtool_accepts_the_rules_and_the_configuration():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH")
    for check in (["check", "rules", "alerts.yaml"], ["check", "config", "--syntax-only", "prometheus.yml"]):
        done = subprocess.run([promtool, *check], cwd=DIRECTORY, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
