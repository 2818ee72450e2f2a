"""The rules call when they should, with words, and are silent when they should: by promtool."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import cli
from fleet.config.spec import FleetSpec
from fleet.decide.lag_status import WORST, LagStatus
from fleet.report.alert_rules import _any, alertmanager_yaml, rules, rules_yaml
from fleet.ui.page_server import read_runbook
from tests.support.needs import program, repository

pytestmark = pytest.mark.prometheus

SPEC = FleetSpec.model_validate(
    {
        "fleets": [
            {"group": "orders.v1", "owner": "pay", "topics": ["orders"], "max_lag": "2m"},
            {"group": 'odd "name\\', "topics": ["orders"]},
        ]
    }
)
WORDS = "orders-3 joins and leaves every 40 s"
MINE = 'cluster="main",group="orders.v1",owner="pay"'


def ran(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    tool = program(name)
    assert tool
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )


def promtool(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return ran("promtool", *arguments)


def amtool(*arguments: str) -> str:
    """What it says of what is right."""
    done = ran("amtool", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def by_promtool(
    folder: Path, spec: FleetSpec, *cases: dict[str, Any]
) -> subprocess.CompletedProcess:
    """Promtool's own tests of the rules of a file."""
    (folder / "rules.yml").write_text(rules_yaml(spec))
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": list(cases)}
    (folder / "tests.yml").write_text(yaml.safe_dump(whole, sort_keys=False))
    return promtool("test", "rules", folder / "tests.yml")


def annotations(name: str, _labels: tuple[str, ...] = (), **texts: str) -> dict[str, str]:
    """All annotations of a rule, with those whose templates matter filled in."""
    (found,) = [
        r
        for r in rules(SPEC)["groups"][0]["rules"]
        if r["alert"] == name and all(each in str(r["labels"]) for each in _labels)
    ]
    return {**found["annotations"], **texts}


def told(
    name: str, severity: str = "page", *, of: tuple[str, ...] = (), group: str = "orders.v1",
    scope: str = "group", labels: dict[str, str] | None = None, **annotated: str,
) -> dict[str, Any]:  # fmt: skip
    """An alert as it is expected; `of` tells apart rules of one name."""
    whose = {"cluster": "main"}
    if scope == "group":
        whose |= {"group": group} | ({"owner": "pay"} if group == "orders.v1" else {})
    return {
        "exp_labels": {**whose, "severity": severity, "scope": scope, **(labels or {})},
        "exp_annotations": annotations(name, of, **annotated),
    }


def storm(words: str = WORDS) -> dict[str, Any]:
    summary = f"Storm in group orders.v1: {words}"
    of = {"cause": "join and leave", "top_offender": "orders-3"}
    return told("FleetGroupStorm", summary=summary, **of)


def at(minutes: float, name: str, *expected: dict[str, Any]) -> dict[str, Any]:
    """What fires then."""
    return {
        "eval_time": f"{minutes * 60:.0f}s",
        "alertname": name,
        "exp_alerts": list(expected),
    }


def lag(group: str, behind: str, limit: int) -> dict[str, Any]:
    of, summary = {"max_lag": f"{limit}s"}, f"Group {group} is {behind} behind"
    return told("FleetGroupLag", of=(f"'{limit}s'",), group=group, labels=of, summary=summary)


def stuck(reason: str, words: str, severity: str = "page", group: str = "orders.v1"):
    return told(
        "FleetGroupStuck", severity, of=(reason, f"'{severity}'"), group=group,
        labels={"reason": reason}, summary=f"Group {group} {words}",
    )  # fmt: skip


def ticket(name: str, summary: str, **labels: str) -> dict[str, Any]:
    return told(name, "ticket", labels=labels, summary=summary)


def of_status(name: str, words: str, minutes: float = 1) -> dict[str, Any]:
    return at(minutes, name, ticket(name, f"Group orders.v1 {words}"))


def blind(reason: str, **annotated: str) -> dict[str, Any]:
    of = {"labels": {"reason": reason}, "scope": "exporter"}
    return told("FleetExporterBlind", of=(reason,), **of, **annotated)


def lag_status(word: str, values: str, level: str = "ERR") -> dict[str, str]:
    return info("fleet_group_lag_status", f'{MINE},status="{word}",level="{level}"', values)


def info(name: str, labels: str, values: str) -> dict[str, str]:
    return {"series": f"{name}{{{labels}}}", "values": values}


LOST = "Group orders.v1 lost records: Kafka deleted them before it read them"
LOSS = told("FleetGroupLoss", summary=LOST)
GONE = "has no members while records wait"
INFO = f'{MINE},cause="join and leave",top_offender="orders-3",summary="{WORDS}"'
CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, Any]]]] = {
    # Values are 15 s apart. The storm begins at 30 s and ends at 90 s: 120 s more are kept.
    "a storm calls at the second look, with who and why, and ends after keep": (
        [
            info("fleet_group_storm", MINE, "0 0 1x3 0x20"),
            info("fleet_group_storm_info", INFO, "_ _ 1x3 _x20"),
        ],
        [
            at(0.25, "FleetGroupStorm"),
            at(0.5, "FleetGroupStorm", storm()),
            at(1.0, "FleetGroupStorm", storm()),
            at(3.0, "FleetGroupStorm", storm()),
            at(4.0, "FleetGroupStorm"),
        ],
    ),
    "words that change end no alert": (
        [
            info("fleet_group_storm", MINE, "1x20"),
            info("fleet_group_storm_info", INFO, "1x2 stale"),
            info("fleet_group_storm_info", INFO.replace("40 s", "55 s"), "_x3 1x20"),
        ],
        [at(3.0, "FleetGroupStorm", storm("orders-3 joins and leaves every 55 s"))],
    ),
    "rebalances within a plan's expected cost call nobody": (
        [
            info("fleet_group_rebalances_total", MINE + ',cause="join"', "0+7x20"),
            info("fleet_group_partitions_moved_total", MINE, "0+99x20"),
            info("fleet_group_storm", MINE, "0x20"),
            info("fleet_group_receipt_differs", MINE, "0x20"),
            info("fleet_snapshot_age_seconds", 'cluster="main"', "3x20"),
        ],
        [
            at(5, name)
            for name in sorted({r["alert"] for r in rules(SPEC)["groups"][0]["rules"]})
        ],
    ),
    "the cluster's storm tells its cause": (
        [
            info("fleet_cluster_storm", 'cluster="main"', "1x9"),
            info(
                "fleet_cluster_storm_info",
                'cluster="main",cause="coordinator move",summary="17 coordinators moved"',
                "1x9",
            ),
        ],
        [
            at(
                1,
                "FleetClusterStorm",
                told(
                    "FleetClusterStorm", scope="cluster",
                    summary="Storm of cluster main: coordinator move",
                    description="17 coordinators moved. This alert inhibits those of the "
                    "cluster's groups.",
                    cause="coordinator move",
                ),
            )
        ],
    ),
    "lag is held against the group's own limit": (
        [
            info("fleet_group_lag_seconds", f'{MINE},topic="a"', "150x20"),
            info("fleet_group_lag_seconds", f'{MINE},topic="b"', "30x20"),
            info("fleet_group_members", MINE, "3x20"),
            info("fleet_group_lag_seconds", 'cluster="main",group="other"', "150x20"),
            info("fleet_group_members", 'cluster="main",group="other"', "3x20"),
        ],
        [
            at(0.25, "FleetGroupLag"),
            at(0.5, "FleetGroupLag", lag("orders.v1", "2m 30s", 120)),
        ],
    ),
    "a group that nobody reads calls only where it is declared": (
        [
            info("fleet_group_lag_seconds", 'cluster="main",group="gone"', "9000x20"),
            info("fleet_group_members", 'cluster="main",group="gone"', "0x20"),
            info("fleet_group_lag_seconds", 'cluster="main",group="odd \\"name\\\\"', "9000x20"),
            info("fleet_group_members", 'cluster="main",group="odd \\"name\\\\"', "0x20"),
        ],
        [at(2, "FleetGroupLag", lag('odd "name\\', "2h 30m 0s", 600))],
    ),
    "a group that does not settle is stuck after ten minutes": (
        [
            info("fleet_group_state", f'{MINE},state="PreparingRebalance"', "1x20 0x20 1x40"),
            info("fleet_group_state", f'{MINE},state="CompletingRebalance"', "0x20 1x20 0x40"),
            info("fleet_group_state", f'{MINE},state="Stable"', "0x80"),
        ],
        [
            at(9.75, "FleetGroupStuck"),
            at(
                10,
                "FleetGroupStuck",
                stuck("unsettled", "does not settle"),
            ),
        ],
    ),
    "a group that rests between rebalances is not stuck": (
        [info("fleet_group_state", f'{MINE},state="PreparingRebalance"', "1x30 0 1x30")],
        [at(14, "FleetGroupStuck")],
    ),
    "no commit, or the same one again, while records wait is stuck after ten minutes": (
        [
            lag_status("STOP", "0x3 1x20 stale"),
            lag_status("STALL", "_x23 1x60"),
            info("fleet_group_members", MINE, "3x80"),
            # It stood still before the exporter began: no age has ever been seen to grow.
            info("fleet_group_lag_records", f'{MINE},topic="a"', "10x80"),
        ],
        [
            at(9.5, "FleetGroupStuck"),
            at(
                11,
                "FleetGroupStuck",
                stuck("no progress", "commits nothing while records wait"),
            ),
        ],
    ),
    "a group that is slow but commits is not stuck, and a ticket": (
        [
            lag_status("WARN", "1x80", level="WARN"),
            info("fleet_group_lag_seconds", f'{MINE},topic="a"', "5+12x80"),
            info("fleet_group_members", MINE, "3x80"),
        ],
        [
            at(18, "FleetGroupStuck"),
            at(0.25, "FleetGroupFallsBehind"),
            of_status("FleetGroupFallsBehind", "falls behind", 0.5),
        ],
    ),
    "a transaction that holds records back is a ticket": (
        [lag_status("HELD", "1x40 0x40", level="WARN")],
        [
            of_status("FleetGroupHeld", "waits for an open transaction"),
            at(13, "FleetGroupHeld"),
        ],
    ),
    "commits that went back are a ticket": (
        [lag_status("REWIND", "1x40 0x40", level="WARN")],
        [
            of_status("FleetGroupRewind", "reads records again"),
            at(13, "FleetGroupRewind"),
        ],
    ),
    "records that were deleted unread alert, also behind a worse lag status": (
        [
            lag_status("LOSS", "1x3 stale"),
            lag_status("STOP", "_x4 1x30"),
            info(
                "fleet_group_partitions", f'{MINE},case="committed below log start"', "1x20 0x20"
            ),
        ],
        [
            at(minutes, "FleetGroupLoss", LOSS)
            for minutes in (0.5, 4.5)
        ] + [at(0.25, "FleetGroupLoss"), at(8, "FleetGroupLoss")],
    ),
    "an abandoned group calls nobody, whatever is lost there, unless it is declared": (
        [
            *(
                info(name, f'{labels}{more}', f"{value}x80")
                for labels in (MINE, 'cluster="main",group="other"')
                for name, more, value in (
                    ("fleet_group_lag_status", ',status="ABANDONED",level="OK"', 1),
                    ("fleet_group_partitions", ',case="committed below log start"', 4),
                    ("fleet_group_members", "", 0),
                    ("fleet_group_generation", "", 9),
                )
            ),
        ],
        [
            at(15, "FleetGroupLoss"),
            at(15, "FleetGroupStuck", stuck("no members", GONE)),
        ],
    ),
    "all members gone: a page where the group is declared, else a ticket where it had some": (
        [
            lag_status("STOP", "1x80"),
            info("fleet_group_members", MINE, "0x80"),
            *(
                info(name, f'cluster="main",group="{group}",owner=""{more}', f"{value}x80")
                for group, value_ in (("had", 7), ("never", 0))
                for name, more, value in (
                    ("fleet_group_lag_status", ',status="STOP",level="ERR"', 1),
                    ("fleet_group_members", "", 0),
                    ("fleet_group_generation", "", value_),
                )
            ),
        ],
        [
            at(8.75, "FleetGroupStuck"),
            at(
                9,
                "FleetGroupStuck",
                stuck("no members", GONE),
                stuck("no members", GONE, "ticket", group="had"),
            ),
        ],
    ),
    "a slot that another process shut is a ticket": (
        [
            info("fleet_slot_state", f'{MINE},slot="3",state="quarantined"', "0 1x9"),
            info("fleet_slot_state", f'{MINE},slot="4",state="active"', "1x9"),
        ],
        [
            at(
                1,
                "FleetWorkerFenced",
                ticket(
                    "FleetWorkerFenced",
                    "Slot 3 of group orders.v1 is quarantined: another process uses its "
                    "instance id",
                    slot="3",
                ),
            )
        ],
    ),
    "a receipt that differs is a ticket": (
        [info("fleet_group_receipt_differs", MINE, "0 1x9")],
        [
            at(
                1,
                "FleetReceiptDiffers",
                ticket(
                    "FleetReceiptDiffers",
                    "The last change of group orders.v1 did not cost what its plan said",
                ),
            )
        ],
    ),
    "an exporter that sees nothing calls after a minute": (
        [info("fleet_snapshot_age_seconds", 'cluster="main"', "0+15x20")],
        [
            at(1, "FleetExporterBlind"),
            at(
                1.25,
                "FleetExporterBlind",
                blind(
                    "old view", summary="Fleet does not see cluster main: its data is 1m 15s old"
                ),
            ),
        ],
    ),
    "no exporter at all calls after a minute": (
        [info("up", 'job="fleet"', "0x20")],
        [
            at(0.75, "FleetExporterBlind"),
            at(
                1,
                "FleetExporterBlind",
                blind("no metrics"),
            ),
        ],
    ),
}  # fmt: skip


def test_the_rules_by_promtool(tmp_path) -> None:
    """Every case of the table above, in one run."""
    cases = [
        {"name": name, "interval": "15s", "input_series": series, "alert_rule_test": tests}
        for name, (series, tests) in CASES.items()
    ]
    done = by_promtool(tmp_path, SPEC, *cases)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = {**cases[0], "alert_rule_test": [at(1, "FleetGroupStorm")]}
    assert by_promtool(tmp_path, SPEC, wrong).returncode == 1, "promtool can fail"


@pytest.mark.parametrize("interval", [1, 15, 60, 3600])
def test_no_alert_ends_before_its_exporter_is_called_gone(interval, tmp_path) -> None:
    """Prometheus scrapes and evaluates several times a minute, whatever the interval is."""
    spec = FleetSpec.model_validate({"exporter": {"interval": interval}})
    series = [
        info("fleet_group_storm", 'cluster="main",group="orders"', "1x40 stale"),
        info("fleet_snapshot_age_seconds", 'cluster="main"', "1x40 stale"),
    ]
    both = 'ALERTS{alertstate="firing",alertname=~"FleetGroupStorm|FleetExporterBlind"}'
    asked = [
        {
            "expr": f"count({both})",
            "eval_time": when,
            "exp_samples": [{"labels": "{}", "value": n}],
        }
        for when, n in (("9m45s", 1), ("11m30s", 2))
    ]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": asked}
    done = by_promtool(tmp_path, spec, test)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("spec", [FleetSpec(), SPEC], ids=["no fleets", "fleets"])
def test_promtool_accepts_the_rules(spec, tmp_path) -> None:
    """Syntax, templates and duplicates."""
    (tmp_path / "rules.yml").write_text(rules_yaml(spec))
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
    assert "lint error" not in done.stdout + done.stderr


def test_every_lag_status_but_ok_has_a_rule() -> None:
    """A rule reads the status itself, whatever its cause."""
    every = "\n".join(r["expr"] for r in rules(FleetSpec())["groups"][0]["rules"])
    read = "|".join(re.findall(r'fleet_group_lag_status\{[^}]*status=~?"([^"]+)"', every))
    alarming = {str(each) for each in WORST if each is not LagStatus.OK}
    assert set(read.split("|")) == alarming


def test_every_alert_has_a_runbook_that_is_there() -> None:
    """Severity page or ticket, keep_firing_for, and a page that says what to do."""
    for rule in rules(SPEC)["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["keep_firing_for"] == "120s"
        base, _, name = rule["annotations"]["runbook_url"].rpartition("/")
        assert base == "http://127.0.0.1:9309/runbooks"
        assert (
            read_runbook(name) == (repository() / "docs/troubleshoot/runbooks" / name).read_text()
        )
        assert "fleet_url" not in rule["annotations"], "nobody said where the page is"
    assert read_runbook("../json.md") is None


@pytest.mark.parametrize(
    ("keys", "base"),
    [
        ({"ui": {"url": "https://fleet.example/x/"}}, "https://fleet.example/x/runbooks"),
        ({"alerts": {"runbooks": "https://git.example/runbooks/"}}, "https://git.example/runbooks"),
        ({"ui": {"listen": "10.0.0.1:80"}}, "http://10.0.0.1:80/runbooks"),
    ],
)
def test_links_are_absolute(keys, base) -> None:
    """From what the file names: the runbooks' own place, the page's address, where it listens."""
    for rule in rules(FleetSpec.model_validate(keys))["groups"][0]["rules"]:
        assert rule["annotations"]["runbook_url"].rpartition("/")[0] == base


def test_a_path_is_no_address_of_runbooks() -> None:
    """In a message it leads nowhere."""
    with pytest.raises(ValueError, match="runbooks"):
        FleetSpec.model_validate({"alerts": {"runbooks": "docs/troubleshoot/runbooks"}})


def test_an_alert_of_a_group_links_to_its_page(tmp_path) -> None:
    """By promtool, for a name that is none of an address."""
    spec = FleetSpec.model_validate({"ui": {"url": "https://fleet.example/"}})
    (found,) = [r for r in rules(spec)["groups"][0]["rules"] if r["alert"] == "FleetReceiptDiffers"]
    labels = {"cluster": "main", "group": "a/b c+d#e"}
    expected = {
        "exp_labels": {**labels, **found["labels"]},
        "exp_annotations": {
            **found["annotations"],
            "summary": "The last change of group a/b c+d#e did not cost what its plan said",
            "fleet_url": "https://fleet.example/#/groups/a%2Fb+c%2Bd%23e",
        },
    }
    series = info("fleet_group_receipt_differs", 'cluster="main",group="a/b c+d#e"', "1x20")
    test = {"interval": "15s", "input_series": [series],
            "alert_rule_test": [at(3.0, "FleetReceiptDiffers", expected)]}  # fmt: skip
    done = by_promtool(tmp_path, spec, test)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_routes_by_severity(tmp_path) -> None:
    """Amtool accepts it and sends pages to the pager."""
    config = tmp_path / "alertmanager.yml"
    config.write_text(alertmanager_yaml(page="http://127.0.0.1:9/p", ticket="http://127.0.0.1:9/t"))
    assert "SUCCESS" in amtool("check-config", str(config))
    route = ("config", "routes", "test", f"--config.file={config}")
    assert amtool(*route, "alertname=FleetGroupStorm", "severity=page") == "page"
    assert amtool(*route, "alertname=FleetWorkerFenced", "severity=ticket") == "ticket"


@pytest.mark.parametrize("option", ["--page", "--ticket"])
@pytest.mark.parametrize("url", ["not a url", "pager:9000", "ftp://pager/hook", "http://", ""])
def test_a_webhook_that_is_no_url_is_refused(option, url, capsys) -> None:
    """Alertmanager itself would not start with it, somewhere else and later."""
    assert cli.run(["render", "alertmanager", option, url]) == 2
    output = capsys.readouterr()
    assert f"{option}: {url!r} is no URL of a webhook: use http://HOST:PORT/PATH" in output.err
    assert not output.out


def test_alertmanager_calls_pagerduty_and_slack(tmp_path, monkeypatch, capsys) -> None:
    """Amtool accepts the file and the templates; secrets stand in files of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text("cluster: {name: shop}\n")
    assert cli.run(["render", "alertmanager", "--slack-channel", "#x"]) == 2
    capsys.readouterr()
    options = ["--pagerduty-key-file", "/etc/pd", "--slack-url-file", "/etc/slack",
               "--slack-channel", "#fleet", "--output-file", "am.yml"]  # fmt: skip
    assert cli.run(["render", "alertmanager", *options]) == 0
    amtool("check-config", "am.yml")
    page, ticket = yaml.safe_load((tmp_path / "am.yml").read_text())["receivers"]
    assert page["pagerduty_configs"][0]["routing_key_file"] == "/etc/pd"
    assert "pagerduty_configs" not in ticket
    for receiver in (page, ticket):
        (slack,) = receiver["slack_configs"]
        assert (slack["api_url_file"], slack["channel"]) == ("/etc/slack", "#fleet")
    alert = {"labels": {}, "status": "firing"} | {
        "annotations": {"summary": "<!channel> & more", "description": "<http://x|what to do>.",
                        "runbook_url": "http://r", "fleet_url": "http://f"}
    }  # fmt: skip
    data = {"alerts": [alert], "status": "firing", "commonLabels": {"severity": "page"}}
    (tmp_path / "data.json").write_text(json.dumps(data))
    (tmp_path / "none.tmpl").write_text("")

    def rendered(text: str) -> str:
        where = ("--template.glob=none.tmpl", "--template.data=data.json")
        return amtool("template", "render", *where, f"--template.text={text}")

    links = "<http://r|what to do> · <http://f|open in Fleet>"
    assert rendered(slack["text"]) == f"&lt;http://x|what to do>.\n{links}"
    assert rendered(slack["title"]) == "page: &lt;!channel> & more"


def test_the_command_writes_them(tmp_path, monkeypatch, capsys) -> None:
    """To a file or to the terminal, from the fleet.yaml that is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(
        "cluster: {name: shop}\nalerts: {max_lag: 5m, keep_firing_for: 10s}\n"
    )
    assert cli.run(["render", "alert-rules", "--output-file", "rules.yml"]) == 0
    assert promtool("check", "rules", tmp_path / "rules.yml").returncode == 0
    written = yaml.safe_load((tmp_path / "rules.yml").read_text())
    (lagging,) = [r for r in written["groups"][0]["rules"] if r["alert"] == "FleetGroupLag"]
    assert lagging["labels"]["max_lag"] == "300s"
    assert lagging["keep_firing_for"] == "10s"
    capsys.readouterr()
    assert cli.run(["render", "alertmanager", "--page", "http://127.0.0.1:9/p"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["route"]["receiver"] == "ticket"
    assert cli.run(["render", "dashboard"]) == 0
    assert json.loads(capsys.readouterr().out)["panels"]


def test_a_line_break_in_a_name_breaks_no_rule() -> None:
    """Kafka allows it in a group id; PromQL wants it written."""
    assert _any(["a\nb", 'c"d']) == '"a\\nb|c\\"d"'
