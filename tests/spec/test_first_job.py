"""`fleet new`: what it adds to a fleet.yaml, and what it leaves alone."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from fleet.config.first_job import declared, files, module_of, write_first_job
from fleet.config.load import load
from fleet.errors import ConfigError
from tests.support.command import said

HEAD = 'cluster: {name: main, bootstrap_servers: "kafka:9092"}\n'
FORMS = {
    "none": "fleets: []\n",
    "none, with a remark": "fleets: []  # none yet\n",
    "nothing behind it": "fleets:",
    "indented": "fleets:\n  # the first\n  - {group: a, topics: [t], mode: observe}\n",
    "not indented": "fleets:\n- {group: a, topics: [t], mode: observe}\nmode: plan\n",
    "far": "fleets:\n      - group: a\n        topics: [t]\n        mode: observe\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_fleet_is_added_to_what_is_there(form, tmp_path):
    """Whatever the list looks like; remarks and other fleets stay."""
    path = tmp_path / "fleet.yaml"
    path.write_text(declared(HEAD + FORMS[form], "to ${HOME}", "orders.v1"))
    spec = load(path, os.environ)
    assert spec.fleets[0].group == "to ${HOME}"
    assert spec.fleets[0].topics == ("orders.v1",)
    assert spec.fleets[0].worker.entrypoint == "to_home:process"
    assert [each.group for each in spec.fleets[1:]] == (["a"] if "- " in FORMS[form] else [])
    assert ("the first" in path.read_text()) is ("the first" in FORMS[form])


def test_a_list_in_one_line_is_left_to_its_author():
    """The lines to write are in the sentence."""
    with pytest.raises(ConfigError, match=r"(?s)under it these lines:.*group: .x."):
        declared(HEAD + "fleets: [{group: a, topics: [t]}]\n", "x", "t")


def test_the_dagster_project_is_written_on_request():
    """The files of the checkout's own, which a test compares with the one call."""
    made = files("orders", Path("/srv/x"), assets=True)
    own = Path(__file__).parents[2] / "assets"
    assert {name for name in made if name.startswith("assets/")} == {
        f"assets/{each.name}" for each in own.glob("*.py")
    }
    assert made["assets/topics.py"] == (own / "topics.py").read_text()
    assert "module_name: assets.definitions" in made["workspace.yaml"]
    assert "assets/topics.py" not in files("orders", Path("/srv/x"))


def test_an_existing_workspace_is_left_and_said(tmp_path, capsys):
    """Dagster loads what it names, so the files of assets/ alone change nothing."""
    (tmp_path / "fleet.yaml").write_text(HEAD + FORMS["none"])
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    write_first_job(tmp_path / "fleet.yaml", "orders", "orders", assets=True)
    assert "name the module assets.definitions in workspace.yaml" in capsys.readouterr().out
    assert (tmp_path / "workspace.yaml").read_text() == "load_from: []\n"


def test_modules_are_names_of_python():
    """Whatever Kafka allows in a group's name."""
    assert [module_of(each) for each in ("orders", "a-b.c", "9lives", "\u00e9", "")] == [
        "orders",
        "a_b_c",
        "job_9lives",
        "job",
        "job",
    ]
    for name, text in files('a"b', Path("/srv/x")).items():
        if name.endswith(".py"):
            compile(text, name, "exec")


def test_a_jobs_test_finds_its_job_whatever_pytest_is_told(tmp_path, monkeypatch):
    """A project that is there already has settings of its own, and no word of jobs/ in them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in files("first-totals", tmp_path).items():
        if name.endswith(".py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
    found = runpy.run_path(str(tmp_path / "tests" / "test_first_totals.py"))
    assert found["rows"] is sys.modules.pop("first_totals").rows


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    """A second job beside the first; a group that is declared is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(HEAD + FORMS["none"])
    (tmp_path / "pyproject.toml").write_text("# mine\n")
    out, _ = said(capsys, "new", "totals", "--topic", "orders")
    assert "pyproject.toml: exists, unchanged" in out
    assert (tmp_path / "pyproject.toml").read_text() == "# mine\n"
    assert "  pytest tests/test_totals.py  " in out
    said(capsys, "new", "sums")
    spec = load(tmp_path / "fleet.yaml", os.environ)
    assert [each.group for each in spec.fleets] == ["sums", "totals"]
    assert [each.topics for each in spec.fleets] == [("sums",), ("orders",)]
    _, err = said(capsys, "new", "sums", code=2)
    assert "already declares group sums" in err
    assert not list(tmp_path.glob(".fleet.yaml*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("заказы",), "without --topic the group reads the topic 'заказы', which"),
        (("",), "GROUP '' is no group name: use 1 to 249 characters"),
        (("g" * 250, "--topic", "t"), "is no group name: use 1 to 249 characters"),
        (("ok", "--topic", "a b"), "--topic 'a b' is not a topic name (up to 249 letters, digits,"),
        (("ok", "--topic", "^("), "--topic '^('"),
        (("a b",), "--topic TOPIC"),
    ],
)
def test_a_name_that_is_none_is_told_with_its_option(words, told, tmp_path, monkeypatch, capsys):
    """Before anything is asked or written, and without a file that nobody has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(HEAD + FORMS["none"])
    _, err = said(capsys, "new", *words, code=2)
    assert told in err
    assert ".new" not in err
    assert [each.name for each in tmp_path.iterdir()] == ["fleet.yaml"]
    assert (tmp_path / "fleet.yaml").read_text() == HEAD + FORMS["none"]


def test_a_group_may_be_named_as_kafka_allows(tmp_path, monkeypatch, capsys):
    """Only topics have narrow names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(HEAD + FORMS["none"])
    said(capsys, "new", "заказы", "--topic", "orders")
    assert load(tmp_path / "fleet.yaml", os.environ).fleets[0].group == "заказы"


def test_lines_that_do_not_fit_are_told_of_the_file_itself(tmp_path, monkeypatch, capsys):
    """Defaults may rule out what a first job has; the file stays."""
    monkeypatch.chdir(tmp_path)
    text = HEAD + "defaults: {worker: {assignor: none}}\nfleets: []\n"
    (tmp_path / "fleet.yaml").write_text(text)
    _, err = said(capsys, "new", "sums", code=2)
    assert "fleet.yaml is unchanged: with group sums as its first fleet" in err
    assert ".new" not in err
    assert (tmp_path / "fleet.yaml").read_text() == text
