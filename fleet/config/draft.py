"""The text of a first fleet.yaml, written from the groups that a cluster has.

Problem: a cluster may have a thousand groups, and a generated file must not start anything.
Choice: every group is `mode: observe` and has no worker; comments name the next step. The text is
formatted here, not dumped, so it can have comments; strings are JSON, which is YAML.
`fleet.config.load` reads what it writes. Cost: groups without a known topic, and groups of other
protocols, are named in comments only.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from fleet.config.spec import ClusterSpec, KubernetesRuntimeSpec, Security
from fleet.lag.snapshot import Snapshot
from fleet.model import GroupSnapshot, LagCase

# YAML as people read it: keys in their order, texts of several lines as blocks, no anchors.


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Writes a value as often as it occurs."""
        return True


def _block_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block_text)


def dump(value: Any, *, width: int = 1000) -> str:
    """Formats one YAML document."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=width, allow_unicode=True)


_HEAD = """\
# The groups of cluster {name}, written by `fleet init`.
#
# Fleet observes every group and changes none: `fleet status` shows lag, members and rebalances.
# To let Fleet run a group:
#   1. add a worker: to it (there is an example at the end of this file)
#   2. set its mode: to plan, and read the steps and their cost in `fleet plan GROUP`
#   3. set its mode: to act, and run `fleet up`
# `fleet new GROUP` adds a group with a job and its test.
# This file holds no credentials: security: names environment variables or files.
"""

_EXAMPLE = """
# A group that Fleet runs:
#
#   - group: orders-enrichment
#     mode: plan
#     owner: team-orders
#     topics: [orders]            # or a regular expression: ["^orders\\\\..*"]
#     worker:
#       entrypoint: "orders.enrich:process"   # package.module:function, (df, context) per batch
#       python_path: [src]
#       assignor: cooperative-sticky          # as the members of today, if there are any
#     replicas: {min: 1, max: 12, standby: 1}
#     scaling: {policy: lag, records_per_worker: 10000}
"""


_DEPLOYED = """\
# runtime.deployment names the Deployment whose pods are the group's members. `fleet plan GROUP`
# shows what a roll of it costs. With mode: act, `fleet scale GROUP N` changes its replicas, and so
# does a policy under scaling: (within replicas:).
"""

_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Deployed = Mapping[str, Mapping[str, int]]
"""Group → Deployment → number of the group's members in its pods."""


def draft(
    snapshot: Snapshot,
    cluster: ClusterSpec,
    *,
    runtime: KubernetesRuntimeSpec | None = None,
    deployed: Deployed | None = None,
) -> str:
    """Returns the file's text: one observed fleet per consumer group of the snapshot, by name.

    runtime: the namespace whose Deployments were read.
    """
    lines = [_HEAD.format(name=_comment(cluster.name)), *_cluster(cluster), "", "mode: observe", ""]
    if runtime is not None:
        place = runtime.model_dump(mode="json", include={"kind", "namespace", "context"})
        known = {key: value for key, value in place.items() if value is not None}
        lines += [_DEPLOYED, "defaults:", f"  runtime: {_escaped(json.dumps(known))}", ""]
    fleets: list[str] = []
    left_out: list[str] = []
    for name in sorted(snapshot.groups):
        group = snapshot.groups[name]
        reason = _unusable(group)
        if reason:
            left_out.append(f"# not written: {_comment(name)} ({reason})")
        else:
            fleets += _fleet(group, deployed or {})
    if fleets:
        lines += ["fleets:", *fleets]
    else:
        lines += ["# No consumer group was found.", "fleets: []"]
    if left_out:
        lines += ["", *left_out]
    return "\n".join(lines) + "\n" + _EXAMPLE


def _cluster(cluster: ClusterSpec) -> list[str]:
    lines = [
        "cluster:",
        f"  name: {_text(cluster.name)}",
        f"  bootstrap_servers: {_text(cluster.bootstrap_servers)}",
    ]
    if cluster.security != Security():
        login = cluster.security.model_dump(mode="json", exclude_defaults=True)
        lines.append(f"  security: {_escaped(json.dumps(login, ensure_ascii=False))}")
    return lines


def _fleet(group: GroupSnapshot, deployed: Deployed) -> list[str]:
    members = len(group.members)
    facts = [f"{group.state}, {group.type}"]
    facts.append(f"{members} member{'' if members == 1 else 's'}")
    if group.assignor:
        facts.append(f"assignor {group.assignor}")
    if group.lag is not None:
        facts.append(f"lag {group.lag:,}")
    topics = ", ".join(_text(topic) for topic in _topics(group))
    remark, runtime = _deployment(group.group, deployed)
    return [
        f"  # {_comment(', '.join(facts))}",
        *remark,
        f"  - group: {_text(group.group)}",
        "    mode: observe",
        f"    topics: [{topics}]",
        *runtime,
    ]


def _deployment(group: str, deployed: Deployed) -> tuple[list[str], list[str]]:
    """Returns comments on where its members run, and the key that names the Deployment."""
    mine = deployed.get(group, {})
    if not mine:
        return [], []
    where = ", ".join(
        f"{count} in pods of Deployment {name}" for name, count in sorted(mine.items())
    )
    remarks = [f"  # members: {_comment(where)}"]
    if len(mine) > 1:
        return [*remarks, "  # to scale one, write runtime: {deployment: NAME}"], []
    (name,) = mine
    others = sorted(other for other in deployed if other != group and name in deployed[other])
    if others:
        shared = _comment(", ".join(others))
        remarks.append(f"  # shared with {shared}: let only one of these groups scale it")
    if not _PLAIN.fullmatch(name):
        return [*remarks, "  # runtime.deployment takes no name with dots"], []
    return remarks, [f"    runtime: {{deployment: {_text(name)}}}"]


def _topics(group: GroupSnapshot) -> list[str]:
    unread = (LagCase.TOPIC_DELETED, LagCase.LEFT)
    known = {p.tp.topic for p in group.partitions if p.case not in unread}
    known |= {tp.topic for member in group.members for tp in member.partitions}
    return sorted(known)


def _unusable(group: GroupSnapshot) -> str:
    if not group.exists:
        return "it does not exist any more"
    if group.type not in {"classic", "consumer", "unknown"}:
        return f"it is a {group.type} group"
    if not group.group or len(group.group) > 249:
        return "its name is empty or longer than 249 characters"
    if not _topics(group):
        if group.members:
            return "its topics are unknown: its members own no partition and committed no offset"
        return "its topics are unknown: it has neither members nor offsets"
    return ""


def _text(value: str) -> str:
    # JSON leaves DEL and its like raw, which YAML refuses; YAML has an escape for any character.
    text = json.dumps(value, ensure_ascii=False)
    return _escaped("".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text))


def _escaped(text: str) -> str:
    """Escapes a name such as ${HOME}, which is no reference to the environment."""
    return text.replace("${", "$${")


def _comment(text: str) -> str:
    """Returns one line, whatever a group's name holds."""
    return "".join(c if c.isprintable() else "?" for c in text)
