"""A fleet's objects say what keeps a worker safe, and nothing that workers write themselves.

`rendered.yaml` is what one fleet becomes; `python -m tests.kubernetes.test_objects` writes it anew.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config.settings import WorkerSettings, revision_of
from fleet.config.spec import FleetSpec, GroupSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.manifests.deployment_objects import (
    MOST_CODE,
    deployment,
    first_slots,
    fleet_objects,
    leases,
    settings_map,
)
from fleet.kubernetes.manifests.overlay import overlaid
from fleet.kubernetes.manifests.pod_template import grace_seconds
from fleet.kubernetes.manifests.spark_objects import spark_objects
from fleet.worker.pod_environment import spark_url
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec, group_spec, settings_of

REVISION = "0123456789"


def fleet(*groups: str, runtime: dict[str, Any] | None = None, **keys: Any) -> FleetSpec:
    """A file with these groups on Kubernetes."""
    place = {**ON_KUBERNETES, **(runtime or {})}
    return fleet_spec(*(declaration(g, runtime=place, **keys) for g in groups or ("orders",)))


def settings(spec: FleetSpec, number: int = 0) -> WorkerSettings:
    """What a revision of its first group starts from."""
    where = {"cluster": spec.cluster, "bootstrap": spec.cluster.bootstrap_servers}
    return settings_of(spec.fleets[number], revision=REVISION, **where)


def pod(spec: FleetSpec) -> dict[str, Any]:
    """The pod template of its first group."""
    made: dict[str, Any] = deployment(settings(spec), replicas=2)["spec"]["template"]
    return made


RENDERED = Path(__file__).with_name("rendered.yaml")


PATCH = {
    "metadata": {"labels": {"app.kubernetes.io/name": "other", "team": "y"}},
    "spec": {
        "containers": [
            {
                "name": "worker",
                "resources": {"limits": {"memory": "2Gi"}},
                "env": [{"name": "HOME", "value": "/elsewhere"}, {"name": "MORE", "value": "1"}],
                "envFrom": [{"configMapRef": {"name": "settings"}}],
            },
            {"name": "proxy", "image": "proxy:1"},
        ],
        "volumes": [{"name": "home", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "more"}],
        "priorityClassName": "high",
    },
}
"""Of pods: entries of the same name are merged, others are added."""


def rendered() -> list[dict[str, Any]]:
    """A fleet with Secrets, with labels that are Fleet's, with a patch of its pods and executors:
    what pods are made of and may do.
    """
    spec = fleet(
        runtime={
            "pod_template": PATCH,
            "env_from": ["kafka"],
            "mounts": {"kafka-tls": "/etc/kafka"},
            "labels": {"team": "x", "fleet/name": "other"},
            "annotations": {"a": "b", "fleet/revision": "other"},
            "spark": {"image": "spark:1", "executors": {"instances": 2, "memory": "1g"}},
        },
        replicas={"min": 1, "max": 2, "standby": 0},
        rollout={"drain_timeout": "45s"},
    )
    found = []
    for each in [*fleet_objects(settings(spec)), *spark_objects(spec)]:
        parts = {key: each[key] for key in ("spec", "rules") if key in each}
        found.append({"kind": each["kind"], "name": each["metadata"]["name"], **parts})
    for variable in found[-1]["spec"]["template"]["spec"]["containers"][0]["env"]:
        if variable["name"] == "FLEET_SPARK_EXECUTOR_POD":
            variable["value"] = json.loads(variable["value"])
    return found


def test_a_fleets_objects_are_those_of_the_file() -> None:
    """Each line of it is a promise: a change of one is a roll of every fleet."""
    assert list(yaml.safe_load_all(RENDERED.read_text(encoding="utf-8"))) == rendered()


def test_a_patch_goes_by_its_directives_and_names() -> None:
    """As `kubectl patch` has it; the patched mapping itself is not changed."""
    base = {"volumes": [{"name": "home"}, {"name": "tmp"}], "spread": [1]}
    gone = overlaid(base, {"volumes": [{"name": "tmp", "$patch": "delete"}], "spread": None})
    assert gone == {"volumes": [{"name": "home"}]}
    assert len(base["volumes"]) == 2
    with pytest.raises(ConfigError, match="an entry of volumes has no name"):
        overlaid(base, {"volumes": [{"emptyDir": {}}]})


def test_a_jvm_of_its_own_asks_for_its_cores_and_heap() -> None:
    spec = fleet(worker={"spark": "local[2]"}, runtime={"spark": {"memory": "1g"}})
    container = pod(spec)["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "2"
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["PYSPARK_SUBMIT_ARGS"] == "--driver-memory 1g pyspark-shell"
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" not in env
    assert spark_objects(spec) == []


def test_a_program_needs_no_spark() -> None:
    """Its pod runs the same worker, which starts the program; nothing of Spark is there."""
    spec = fleet(worker={"entrypoint": "", "command": ["java", "-jar", "app.jar"]})
    container = pod(spec)["spec"]["containers"][0]
    assert container["command"][:2] == ["fleet", "worker"]
    assert not [e for e in container["env"] if "SPARK" in e["name"]]
    assert spark_objects(spec) == []


def test_a_rolling_batch_of_dynamic_members_has_leases_beside_all_others() -> None:
    """It joins before those that it replaces leave: with replicas.max of them there are more."""
    bounds: dict[str, Any] = {"replicas": {"min": 2, "max": 5}, "rollout": {"max_parallel": 3}}
    group = fleet(worker={"membership": "dynamic"}, **bounds).fleets[0]
    names = ObjectNames("main", "orders")
    found = leases(names, "fleets", group)
    assert json.loads(found[0]["metadata"]["annotations"]["fleet/first"]) == {
        "slots": 2,
        "after": 60,
    }
    fixed = fleet(scaling={"policy": "fixed", "workers": 9}, **bounds).fleets[0]
    assert first_slots(fixed) == 5, "a fixed policy opens its number, within the bounds"
    assert all("spec" not in lease for lease in found), "workers write it"
    made = [lease["metadata"]["name"] for lease in found]
    assert made == [names.targets, names.answers, *names.slots(range(8)), *names.reports(18)]
    objects = fleet_objects(settings(fleet(worker={"membership": "dynamic"}, **bounds)))
    role = next(o for o in objects if o["kind"] == "Role")
    assert role["rules"][0]["resourceNames"] == made[1:], "all but the slot targets"


def test_a_deployment_rolls_at_the_groups_pace() -> None:
    """As many more as `max_parallel`, none less; each new pod is ready for `bake`."""
    rollout = {"max_parallel": 3, "bake": "12.5s"}
    spec = deployment(settings(fleet(rollout=rollout)), replicas=4)["spec"]
    rolling = {"maxSurge": 3, "maxUnavailable": 0}
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert spec["minReadySeconds"] == 13
    group = fleet(rollout=rollout).fleets[0]
    rollout = group.rollout
    longest = rollout.node_timeout + rollout.warm_timeout + rollout.drain_timeout
    longest += group.batch_limit
    assert spec["progressDeadlineSeconds"] > longest + spec["minReadySeconds"]
    dynamic = fleet(worker={"membership": "dynamic"}, rollout=rollout)
    left = deployment(settings(dynamic), replicas=4)["spec"]
    assert left["minReadySeconds"] == 2 * 13 + 30, "the old members leave before their pods go"


def test_code_lies_beside_the_settings_or_is_refused() -> None:
    """What is too large for a ConfigMap belongs into an image."""
    made = settings_map(settings(fleet()), code=b"packed")
    assert made["binaryData"] == {"code.tgz": "cGFja2Vk"}
    assert WorkerSettings.model_validate_json(made["data"]["settings.json"]) == settings(fleet())
    with pytest.raises(ConfigError, match="build an image"):
        settings_map(settings(fleet()), code=b"x" * (MOST_CODE + 1))


def test_the_template_names_the_code_and_a_setting_refuses_it() -> None:
    """Of the ConfigMap that others may write; images alone are verified by some clusters."""
    known = settings(fleet()).model_copy(update={"code_digest": "ab" * 32})
    container = deployment(known, replicas=1)["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "FLEET_CODE_DIGEST", "value": "ab" * 32} in container["env"]
    verified = {"ship_code": False}
    fleet(runtime=verified)
    with pytest.raises(ValueError, match=r"python_path names src, but runtime\.ship_code is false"):
        fleet(runtime=verified, worker={"python_path": ["src"]})


def test_all_objects_lie_in_the_namespace_and_bear_the_raw_group() -> None:
    made = fleet_objects(settings(fleet("Orders.v1/Ünïcode")))
    assert {o["metadata"]["namespace"] for o in made} == {"fleets"}
    assert {o["metadata"]["annotations"]["fleet/group"] for o in made} == {"Orders.v1/Ünïcode"}
    assert made[-1]["kind"] == "Deployment"
    assert made[-1]["spec"]["replicas"] == 2


def test_fleets_share_one_spark_server_or_say_that_they_cannot() -> None:
    shared = spark_objects(fleet("orders", "payments"))
    assert [o["kind"] for o in shared] == ["Service", "Deployment"]
    container = shared[1]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "fleet:1"
    raw = fleet("orders", "payments").model_dump()
    raw["fleets"][1]["runtime"]["spark"]["memory"] = "4g"
    with pytest.raises(ConfigError, match="share one Spark server"):
        spark_objects(FleetSpec.model_validate(raw))


def sharing(**runtimes: dict[str, Any]) -> FleetSpec:
    """Groups with these keys of their runtimes, all on shared Spark."""
    places = {group: {**ON_KUBERNETES, **own} for group, own in runtimes.items()}
    return fleet_spec(*(declaration(group, runtime=place) for group, place in places.items()))


def secrets_of(template: dict[str, Any]) -> tuple[list[str], dict[str, str], str]:
    """What a pod takes: Secrets as variables, Secrets by path, the key of its Spark token."""
    (container,) = template["containers"]
    volumes = {v["name"]: v["secret"]["secretName"] for v in template["volumes"] if "secret" in v}
    files = [m for m in container["volumeMounts"] if m["name"] in volumes]
    assert all(each["readOnly"] for each in files)
    env = {e["name"]: e.get("valueFrom") for e in container["env"]}
    return (
        [each["secretRef"]["name"] for each in container.get("envFrom") or ()],
        {each["mountPath"]: volumes[each["name"]] for each in files},
        env["SPARK_CONNECT_AUTHENTICATE_TOKEN"]["secretKeyRef"]["key"],
    )


def test_each_set_of_secrets_has_a_spark_server_with_its_own_token() -> None:
    """No fleet's code sees another's Secrets; the same path or variable may mean another one."""
    bank = {"env_from": ["bank"], "mounts": {"bank-tls": "/tls"}}
    spec = sharing(
        orders={"env_from": ["kafka"], "mounts": {"ca": "/tls"}},
        payments=bank,
        refunds=bank,
        returns={"env_from": ["bank"], "mounts": {"another": "/tls"}},
        ads={},
    )
    made = spark_objects(spec)
    assert [each["kind"] for each in made] == ["Service", "Deployment"] * 4
    servers = {o["metadata"]["name"]: o for o in made if o["kind"] == "Deployment"}
    keys = set()
    for fleet_, (secrets, paths) in zip(
        spec.fleets,
        [
            (["kafka"], {"/tls": "ca"}),
            *[(["bank"], {"/tls": "bank-tls"})] * 2,
            (["bank"], {"/tls": "another"}),
            ([], {}),
        ],
        strict=True,
    ):
        own = fleet_.runtime.spark_server()
        template = servers[own]["spec"]["template"]
        *taken, key = secrets_of(template["spec"])
        assert taken == [secrets, paths]
        worker = deployment(settings_of(fleet_, cluster=spec.cluster), replicas=1)
        assert secrets_of(worker["spec"]["template"]["spec"]) == (secrets, paths, key)
        assert spark_url(fleet_.runtime, {}) == f"sc://{own}.fleets.svc:15002"
        labels = template["metadata"]["labels"].items()
        services = [o for o in made if o["kind"] == "Service"]
        (found,) = [o for o in services if o["spec"]["selector"].items() <= labels]
        assert found["metadata"]["name"] == own
        keys.add(key)
    assert len(keys) == 4
    assert "token" in keys, "the server of those without Secrets"


def test_servers_with_executors_have_an_account_unless_the_platform_makes_accounts() -> None:
    """It may only create, see and delete pods; one for all servers of the namespace."""
    wanted: dict[str, Any] = {"spark": {"executors": {"instances": 2}, "image": "spark:1"}}
    spec = sharing(orders={**wanted, "env_from": ["kafka"]}, ads={})
    (*account, _, _, _, _) = spark_objects(spec)
    assert [each["kind"] for each in account] == ["ServiceAccount", "Role", "RoleBinding"]
    assert [rule["resources"] for rule in account[1]["rules"]] == [["pods"]]
    spec = sharing(orders={**wanted, "service_account": "given"})
    assert [each["kind"] for each in spark_objects(spec)] == ["Service", "Deployment"]


@pytest.mark.parametrize("name", ["kafka.login", "k" * 63, "a." * 120 + "b", "kafka"])
def test_a_secret_may_be_named_as_kubernetes_allows(name: str) -> None:
    """A volume's name may be shorter than a Secret's, and has no dots."""
    made = pod(fleet(runtime={"env_from": [name], "mounts": {name: "/tls"}}))["spec"]
    secrets, files, _ = secrets_of(made)
    assert (secrets, files) == ([name], {"/tls": name})
    assert all(re.fullmatch(r"[a-z0-9-]{1,63}", volume["name"]) for volume in made["volumes"])


@pytest.mark.parametrize(
    ("runtime", "why"),
    [
        pytest.param({"env_from": ["Kafka"]}, "pattern", id="capital"),
        pytest.param({"env_from": ["a..b"]}, "pattern", id="empty part"),
        pytest.param({"env_from": ["a" * 254]}, "253", id="too long"),
        pytest.param({"mounts": {"a": "tls"}}, "absolute path", id="relative"),
        pytest.param({"mounts": {"a": "/x/../etc"}}, "absolute path", id="upwards"),
        pytest.param({"mounts": {"a": "/x:y"}}, "absolute path", id="colon"),
        pytest.param({"mounts": {"a": "/tls", "b": "/tls/"}}, "a and b both at /tls", id="twice"),
        pytest.param({"mounts": {"a": "/"}}, "would hide /etc/fleet", id="root"),
        pytest.param({"mounts": {"a": "/var/lib"}}, "would hide /var/lib/fleet", id="above"),
        pytest.param({"mounts": {"a": "/tmp"}}, "would hide /tmp", id="ours"),
        pytest.param({"mounts": {"a": "/etc/fleet/tls"}}, "below /etc/fleet", id="read-only"),
        pytest.param({"env_from": ["fleet-spark"]}, "tokens of all Spark servers", id="tokens"),
        pytest.param({"spark": {"memory": "449m"}}, "449m is less than 450m", id="heap"),
        pytest.param(
            {"spark": {"executors": {"instances": 1, "memory": "9m"}}}, "9m is less", id="executor"
        ),
        pytest.param(
            {"spark": {"executors": {"instances": 1}, "master": "local[2]"}},
            r"master local\[2\] and executors exclude each other",
            id="two masters",
        ),
        pytest.param({"labels": {"a b": "c"}}, "pattern", id="label"),
        pytest.param({"labels": {"a": "x" * 64}}, "pattern", id="label value"),
        pytest.param({"annotations": {"/a": "b"}}, "pattern", id="annotation"),
        pytest.param({"node_selector": {"a": "-"}}, "pattern", id="node"),
    ],
)
def test_what_an_api_server_would_refuse_is_refused_at_once(runtime: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fleet(runtime=runtime)


# --- what a pod is given to end, from the spec alone ------------------------------------------


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


def test_a_grace_is_refused_beyond_the_poll_interval_and_without_a_worker():
    """The sentence names the values and what to change."""
    with pytest.raises(ConfigError, match=r"up to 301 s to stop .*max_poll_interval 300s; lower"):
        grace_seconds(group(drain="226s", lease="60s"))
    with pytest.raises(ConfigError, match="orders declares no worker"):
        grace_seconds(group().model_copy(update={"worker": None}))


def test_another_lease_is_another_revision_of_pods_and_its_grace() -> None:
    """Processes on this machine take it from what is published."""
    now, then = group(lease="30s"), group(lease="60s")
    assert revision_of(now, "code") != revision_of(then, "code")
    assert grace_seconds(then) - grace_seconds(now) == 30
    here = [group_spec(runtime={"kind": "local", "lease": lease}) for lease in ("10s", "20s")]
    assert revision_of(here[0], "code") == revision_of(here[1], "code")


if __name__ == "__main__":
    RENDERED.write_text(
        yaml.safe_dump_all(rendered(), sort_keys=False, default_flow_style=None, width=100),
        encoding="utf-8",
    )
