"""The dashboard of Grafana and the alert rules name metrics and labels that tasks show."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from helpers.processes import ROOT
from ropewalk.telemetry.catalogue import CATALOGUE

FOLDER = ROOT / "deploy" / "monitoring"
BOARD = json.loads((FOLDER / "ropewalk-job.json").read_text())
[GROUP] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
METRICS = {metric.name: metric for metric in CATALOGUE.values()}
OF_PROMETHEUS = {"job", "instance", "le"}
EXPRESSIONS = {
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in BOARD["panels"]
        for target in panel["targets"]
    },
    **{rule["alert"]: rule["expr"] for rule in GROUP["rules"]},
}


def _named(expression: str) -> Iterator[tuple[str, str]]:
    """Each metric with what stands in its braces."""
    yield from re.findall(r"(ropewalk_\w+)(?:\{([^}]*)\})?", expression)


def _metric_of(name: str) -> str:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in METRICS and METRICS[base].is_histogram else name


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_metrics_and_labels_are_in_the_catalogue(where: str) -> None:
    named = list(_named(EXPRESSIONS[where]))
    assert named
    for name, matchers in named:
        metric = METRICS[_metric_of(name)]
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers))
        assert labels <= {*metric.labels, *OF_PROMETHEUS}, name


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_what_only_grows_is_read_as_a_rate(where: str) -> None:
    expression = EXPRESSIONS[where]
    for name, _ in _named(expression):
        metric = METRICS[_metric_of(name)]
        if (metric.is_counter or metric.is_histogram) and name != "ropewalk_job_failovers_total":
            assert re.search(rf"(rate|increase)\({name}", expression), name


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    text = (FOLDER / "alerts.yml").read_text()
    for rule in GROUP["rules"]:
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        # The reason stands above it.
        before = text[: text.index(f"- alert: {rule['alert']}")].rstrip().splitlines()[-1]
        assert before.strip().startswith("# "), rule["alert"]


def test_the_dashboard_has_no_panel_twice_and_asks_one_data_source() -> None:
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert len(titles) == len(set(titles)) == len({panel["id"] for panel in BOARD["panels"]})
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {"${datasource}"}
