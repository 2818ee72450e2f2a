"""A user's patch over the worker's pods: by Kubernetes' rules, and Fleet's own labels stay."""

from typing import Any

import pytest

from fleet.errors import ConfigError
from fleet.kubernetes.client.object_names import REVISION_ANNOTATION, ObjectNames
from fleet.kubernetes.manifests.overlay import overlaid
from fleet.kubernetes.manifests.pod_template import template
from tests.support.declared import ON_KUBERNETES, group_spec, settings_of

NAMES = ObjectNames("main", "orders")


def made(spec: dict[str, Any], **metadata: dict[str, str]) -> dict[str, Any]:
    """The pod template with this patch."""
    patch = {"spec": spec, "metadata": metadata}
    runtime = {**ON_KUBERNETES, "env_from": ["kafka"], "pod_template": patch}
    return template(settings_of(group_spec(runtime=runtime)), names=NAMES)


def test_named_entries_are_merged_and_others_are_added() -> None:
    """The worker keeps its probes; a sidecar and a volume come beside."""
    worker = {
        "name": "worker",
        "resources": {"limits": {"memory": "2Gi"}},
        "env": [{"name": "HOME", "value": "/elsewhere"}, {"name": "MORE", "value": "1"}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
    }
    spec = made(
        {
            "containers": [worker, {"name": "proxy", "image": "proxy:1"}],
            "volumes": [{"name": "home", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "more"}],
            "priorityClassName": "high",
            "topologySpreadConstraints": None,
        }
    )["spec"]
    before = made({})["spec"]
    names = [each["name"] for each in spec["containers"]]
    assert names == ["worker", "proxy"]
    patched, plain = spec["containers"][0], before["containers"][0]
    assert patched["livenessProbe"] == plain["livenessProbe"]
    assert patched["resources"] == {**plain["resources"], "limits": {"memory": "2Gi"}}
    env = {each["name"]: each.get("value") for each in patched["env"]}
    assert (env["HOME"], env["MORE"]) == ("/elsewhere", "1")
    assert len(patched["env"]) == len(plain["env"]) + 1
    assert patched["envFrom"] == [
        {"secretRef": {"name": "kafka"}},
        {"configMapRef": {"name": "settings"}},
    ]
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["home"]["emptyDir"] == {"sizeLimit": "1Gi"}
    assert "more" in volumes
    assert spec["priorityClassName"] == "high"
    assert "topologySpreadConstraints" not in spec


def test_what_finds_the_pods_is_not_the_users() -> None:
    """Without its labels a pod would be nobody's; others are added."""
    metadata = made({}, labels={"fleet/name": "other", "team": "a"}, annotations={"note": "b"})[
        "metadata"
    ]
    assert metadata["labels"]["fleet/name"] == NAMES.slug
    assert metadata["labels"]["team"] == "a"
    assert metadata["annotations"]["note"] == "b"
    assert metadata["annotations"][REVISION_ANNOTATION] == "r1"


def test_an_entry_goes_by_its_directive_and_needs_a_name() -> None:
    """As `kubectl patch` has it; the patched mapping itself is not changed."""
    base = {"volumes": [{"name": "home"}, {"name": "tmp"}]}
    gone = overlaid(base, {"volumes": [{"name": "tmp", "$patch": "delete"}]})
    assert gone == {"volumes": [{"name": "home"}]}
    assert len(base["volumes"]) == 2
    with pytest.raises(ConfigError, match="an entry of volumes has no name"):
        overlaid(base, {"volumes": [{"emptyDir": {}}]})
