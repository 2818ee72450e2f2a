"""The dashboard is one that Grafana takes: ids, places, units, variables, thresholds.

Grafana itself is not here; what its importer and its panels rest on is checked one by one. That
every query means something is the end-to-end test's, which asks a real Prometheus.
"""

import itertools
import json
import re
from typing import Any

from fleet.report.dashboard import dashboard, dashboard_json, queries

BUILT_IN = {"__interval", "__rate_interval", "__range"}
KINDS = {"stat", "table", "timeseries"}
UNITS = {"short", "s", "cps"}
"""Of Grafana's own list (its value formats): a misspelt one would be shown behind each value."""
COLORS = {"text", "green", "red"}

BOARD = dashboard()
PANELS: list[dict[str, Any]] = BOARD["panels"]


def named(text: str) -> set[str]:
    """Variables that a text uses: `$name` and `${name}`."""
    return set(re.findall(r"\$\{?(\w+)", text))


def test_it_is_json_with_an_id_that_grafana_takes() -> None:
    """An uid is at most 40 letters, digits, dashes; the id is given by Grafana."""
    assert json.loads(dashboard_json()) == BOARD
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", BOARD["uid"])
    assert BOARD.get("id") is None
    assert BOARD["title"]
    assert 36 <= BOARD["schemaVersion"] <= 42, "targets name their source as an object since 36"


def test_panels_lie_side_by_side() -> None:
    """On 24 columns, none over another, no hole in a row."""
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] >= 0
        assert at["w"] > 0
        assert at["h"] > 0
        assert at["x"] + at["w"] <= 24
        mine = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not mine & cells, panel["title"]
        cells |= mine
    assert len(cells) == 24 * (max(y for _, y in cells) + 1)


def test_panels_are_of_kinds_and_units_that_there_are() -> None:
    """Each with an id, a title and letters for its queries of its own."""
    for key in ("id", "title"):
        values = [panel[key] for panel in PANELS]
        assert len(set(values)) == len(values), key
    for panel in PANELS:
        assert panel["type"] in KINDS
        assert panel["targets"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        steps = defaults["thresholds"]["steps"]
        assert steps[0]["value"] is None
        assert [s["value"] for s in steps[1:]] == sorted(s["value"] for s in steps[1:])
        assert {s["color"] for s in steps} <= COLORS


def test_every_variable_is_declared_before_it_is_used() -> None:
    """One dashboard serves each source and cluster: nothing names one."""
    known: set[str] = set()
    for variable in BOARD["templating"]["list"]:
        own = {key: value for key, value in variable.items() if key != "current"}
        assert named(json.dumps(own)) <= known, variable["name"]
        assert variable["type"] in {"datasource", "query"}
        known.add(variable["name"])
    for text in queries():
        assert named(text) <= known | BUILT_IN, text
    for panel in PANELS:
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert "datasource" in known
