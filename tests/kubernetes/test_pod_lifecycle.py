"""What a pod is given to end, from the spec alone."""

import pytest

from fleet.config.spec import GroupSpec
from fleet.errors import ConfigError
from fleet.kubernetes.manifests.pod_lifecycle import grace_seconds, probes
from tests.support.declared import ON_KUBERNETES, group_spec


def group(*, drain: str = "30s", lease: str = "30s", poll: str = "5m") -> GroupSpec:
    runtime = {**ON_KUBERNETES, "lease": lease}
    terms = {"max_poll_interval": poll}
    return group_spec(worker=terms, rollout={"drain_timeout": drain}, runtime=runtime)


@pytest.mark.parametrize(
    ("drain", "lease", "expected"),
    [
        pytest.param("30s", "30s", 75, id="as shipped"),
        pytest.param("1.5s", "10s", 27, id="rounded up"),
        pytest.param("225s", "60s", 300, id="just fits"),
    ],
)
def test_the_grace_holds_a_drain_and_the_last_writes(drain: str, lease: str, expected: int):
    """drain_timeout + lease + 15 s, in whole seconds."""
    assert grace_seconds(group(drain=drain, lease=lease)) == expected


def test_a_grace_beyond_the_poll_interval_is_refused():
    """The sentence names the values and what to change."""
    with pytest.raises(ConfigError, match=r"up to 301 s to end .*max_poll_interval 300s: shorten"):
        grace_seconds(group(drain="226s", lease="60s"))


def test_other_peoples_consumers_have_no_pods_of_ours():
    """A group without a worker is refused by name."""
    spec = group().model_copy(update={"worker": None})
    with pytest.raises(ConfigError, match="orders declares no worker"):
        grace_seconds(spec)


def test_probes_ask_the_named_port():
    """Each has a path of its own; a silent worker is restarted within 30 s."""
    made = probes()
    paths = {name: probe["httpGet"]["path"] for name, probe in made.items()}
    assert paths == {
        "startupProbe": "/startupz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",
    }
    assert {probe["httpGet"]["port"] for probe in made.values()} == {"http"}
    live = made["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] == 30
