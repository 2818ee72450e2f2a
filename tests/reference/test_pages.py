"""Pages and schema say what the code says; the schema takes what Fleet takes, and not much more.

Faults: a key without a word, a page older than the code, an editor that marks what is right.
"""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from fleet.config.draft import draft
from fleet.config.load import load
from fleet.config.spec import ClusterSpec, FleetSpec
from tests.reference.pages import AGAIN, PAGES, keys, schema
from tests.support.needs import repository
from tests.support.snapshots import snapshot_of


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_what_the_code_says(name: str) -> None:
    """Otherwise write them again."""
    kept = (repository() / name).read_text(encoding="utf-8")
    assert kept == PAGES[name](), f"{name} is not what the code says: run {AGAIN}"


def test_every_key_has_a_word() -> None:
    """Under its field in fleet/config/spec*.py."""
    silent = [key for key, *_, text in keys(FleetSpec, "") if not text]
    assert not silent


WRONG = [
    ("fleets: [{group: a, topics: [b], colour: red}]", "colour"),
    ("fleets: [{topics: [b]}]", "group"),
    ("mode: never", "never"),
    ("fleets: [{group: a, topics: [b], replicas: {min: -1}}]", "-1"),
    ("fleets: [{group: a, topics: [b], rollout: {bake: soon}}]", "soon"),
    ("defaults: {}\nfleets: [{group: a, topics: [b], worker: {protocol: consumer, http: 1}}]", "1"),
    ("defaults: {group: a}", "group"),
]  # fmt: skip
RIGHT = """
cluster: {name: "${NAME:-main}", bootstrap_servers: embedded}
mode: ${MODE}
defaults: {worker: {entrypoint: "a:b"}, storm: {window: 10m}, replicas: {max: "${MOST}"}}
fleets:
- {group: a, topics: [b], worker: {protocol: consumer}, scaling: {policy: fixed, workers: 2}}
- {group: b, topics: ["^b.*"], runtime: {kind: kubernetes, image: x}, rollout: {bake: 30}}
"""


def test_schema_takes_what_is_right(tmp_path: Path) -> None:
    """The example, what `fleet init` writes, references, and keys that `defaults` completes."""
    checking = jsonschema.Draft202012Validator(json.loads(schema()))
    example = repository() / "fleet.example.yaml"
    load(example, {})
    drafted = draft(snapshot_of(), ClusterSpec())
    for text in (example.read_text(), RIGHT, drafted):
        checking.validate(yaml.safe_load(text))


@pytest.mark.parametrize(("text", "named"), WRONG)
def test_schema_refuses_what_is_wrong(text: str, named: str) -> None:
    """As Fleet does."""
    checking = jsonschema.Draft202012Validator(json.loads(schema()))
    errors = list(checking.iter_errors(yaml.safe_load(text)))
    assert errors
    assert named in "".join(map(str, errors))
