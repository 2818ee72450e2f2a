"""`fleet init` writes a file that loads, whatever a cluster's groups are called."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.config.draft import draft
from fleet.config.load import load
from fleet.config.spec import ClusterSpec, KubernetesRuntimeSpec
from fleet.model import GroupSnapshot, GroupState
from tests.support.seen_groups import group_seen, partition_seen
from tests.support.snapshots import snapshot_of


def group(name: str, *topics: str, **changes: Any) -> GroupSnapshot:
    """A group with one partition of each topic."""
    partitions = [partition_seen(0, 2, topic=topic) for topic in topics]
    usual = {"state": GroupState.EMPTY, "assignor": None}
    return group_seen(name, partitions=partitions, **{**usual, **changes})


def written(text: str, folder: Path) -> Path:
    """The text as a file."""
    path = folder / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_found_is_observed(tmp_path: Path) -> None:
    """Each group with its topics, observed, without a worker; what does not fit is a comment."""
    seen = snapshot_of(
        group("orders", "orders", "returns"), group("bare"), group("shared", "t", type="share")
    )
    cluster = ClusterSpec.model_validate({"name": "prod", "bootstrap_servers": "k:9092"})
    text = draft(seen, cluster)
    spec = load(written(text, tmp_path), {})
    assert [(f.group, f.topics, f.mode, f.worker) for f in spec.fleets] == [
        ("orders", ("orders", "returns"), "observe", None)
    ]
    assert spec.cluster == cluster
    assert "# not written: shared (it is a share group)" in text
    assert "# not written: bare (its topics are unknown" in text
    assert "lag 4" in text


def test_deployments_are_named(tmp_path: Path) -> None:
    """A group in one Deployment names it; where it is not sure which, a person has to choose."""
    seen = snapshot_of(*(group(name, "t") for name in ("billing", "both", "dots", "none", "twin")))
    runtime = KubernetesRuntimeSpec(kind="kubernetes", namespace="apps", context="${C}")
    found = {
        "billing": {"billing-consumer": 3},
        "both": {"a": 1, "b": 2},
        "dots": {"a.b": 1},
        "twin": {"billing-consumer": 1},
    }
    text = draft(seen, ClusterSpec(), runtime=runtime, deployed=found)
    spec = load(written(text, tmp_path), {})
    named = {f.group: f.runtime for f in spec.fleets}
    assert all(isinstance(each, KubernetesRuntimeSpec) for each in named.values())
    assert {each.place() for each in named.values()} == {
        "kubernetes namespace apps of context ${C}"
    }
    assert {group: getattr(each, "deployment", "") for group, each in named.items()} == {
        "billing": "billing-consumer",
        "both": None,
        "dots": None,
        "none": None,
        "twin": "billing-consumer",
    }
    assert {f.mode for f in spec.fleets} == {"observe"}
    assert "scaling" not in spec.fleets[0].model_fields_set
    assert "# members: 1 in pods of Deployment a, 2 in pods of Deployment b" in text
    assert "# shared with twin: let only one of these groups scale it" in text


def test_an_empty_cluster_has_a_file_too(tmp_path: Path) -> None:
    """No groups: a file that loads and says so."""
    text = draft(snapshot_of(), ClusterSpec())
    assert "No consumer group was found" in text
    assert load(written(text, tmp_path), {}).fleets == ()


def test_security_is_kept_by_reference(tmp_path: Path) -> None:
    """Names of variables and files are written, so that the file reaches the same cluster."""
    login = {"mechanism": "PLAIN", "username_env": "U", "password_env": "P"}
    cluster = ClusterSpec.model_validate(
        {"bootstrap_servers": "k:1", "security": {"protocol": "SASL_SSL", "sasl": login}}
    )
    assert load(written(draft(snapshot_of(), cluster), tmp_path), {}).cluster == cluster


@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=249))
def test_any_group_name_survives(tmp_path_factory: Any, name: str) -> None:
    """Quotes, line ends, ${…}, emoji: what Kafka allows in a group id, the file carries."""
    folder = tmp_path_factory.mktemp("draft")
    spec = load(written(draft(snapshot_of(group(name, "t")), ClusterSpec()), folder), {})
    assert [f.group for f in spec.fleets] == [name]
