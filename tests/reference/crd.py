"""The CustomResourceDefinition of ConsumerFleet: its structural schema comes from fleet.yaml's.

A structural schema has one type at each place and no alternatives: the variants of a tagged
mapping become one mapping, and what only one of them knows is left to the operator, whose loader
is that of fleet.yaml.
"""

import json
from collections.abc import Callable
from typing import Any

import yaml
from pydantic import BaseModel

from fleet.config.spec import GroupSpec
from fleet.kubernetes.operator import resource

Schema = dict[str, Any]
Describe = Callable[[type[BaseModel], str], str]

_ELSEWHERE = {
    "KubernetesRuntimeSpec": {"kind", "namespace", "context", "deployment", "pod_template"},
    "LocalRuntimeSpec": {"kind"},
    "ClassicWorker": {"python_path"},
    "ConsumerWorker": {"python_path"},
}
"""Keys that the resource itself, or the operator's pod, answers."""
_DURATION = r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_KEPT = ("type", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems")


def definition(models: dict[str, type[BaseModel]], describe: Describe, again: str) -> str:
    """The CRD as a file; models: of fleet.yaml by name, describe: what a field's text says."""
    made = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.PLURAL}.{resource.GROUP}",
            "labels": {"app.kubernetes.io/name": "fleet-operator"},
            # `helm uninstall` would delete every fleet with it.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": resource.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.KIND,
                "listKind": f"{resource.KIND}List",
                "plural": resource.PLURAL,
                "singular": resource.KIND.lower(),
                "shortNames": ["cfleet"],
                "categories": ["all"],
            },
            "versions": [_version(_Structural(models, describe))],
        },
    }
    plain = json.loads(json.dumps(made))  # without aliases
    return f"# Written by `{again}`.\n" + yaml.safe_dump(plain, sort_keys=False, width=100)


class _Structural:
    """Turns pydantic's JSON schema into a structural one."""

    def __init__(self, models: dict[str, type[BaseModel]], describe: Describe) -> None:
        self._models = models
        self._describe = describe
        self._parts: dict[str, Schema] = GroupSpec.model_json_schema()["$defs"]

    def fleet(self) -> Schema:
        """One entry of `fleets:`."""
        made = self._mapping("GroupSpec", GroupSpec.model_json_schema())
        made["required"] = ["group"]
        return made

    def _mapping(self, name: str, part: Schema) -> Schema:
        skipped = _ELSEWHERE.get(name, set())
        keys = {}
        for key, each in part["properties"].items():
            if key not in skipped:
                keys[key] = self._value(each)
                if text := self._describe(self._models[name], key):
                    keys[key] = {"description": text, **keys[key]}
        return {"type": "object", "properties": keys}

    def _value(self, part: Schema) -> Schema:
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            return self._mapping(name, self._parts[name])
        variants = [each for each in part.get("anyOf", ()) if each != {"type": "null"}]
        if len(variants) == 1:
            return {**self._value(variants[0]), "nullable": True}
        if variants := variants or part.get("oneOf", []):
            return self._merged([self._value(each) for each in variants])
        if part.get("type") == "array":
            items = part.get("items", {"type": "object"})
            least = {key: part[key] for key in ("minItems",) if key in part}
            return {"type": "array", "items": self._value(items), **least}
        if part.get("type") == "object":
            return self._free(part)
        if "const" in part:
            return {"type": "string", "enum": [part["const"]]}
        made = {key: part[key] for key in _KEPT if key in part}
        if made.get("type") == "number":  # all are durations
            bounds = {key: int(made[key]) for key in ("maximum",) if key in made}
            return {"x-kubernetes-int-or-string": True, "pattern": _DURATION, **bounds}
        return made

    def _free(self, part: Schema) -> Schema:
        """A mapping with keys of the user's."""
        named = part.get("patternProperties") or {"": part.get("additionalProperties")}
        values = next(iter(named.values()))
        if isinstance(values, dict) and values:
            return {"type": "object", "additionalProperties": self._value(values)}
        return dict(_ANYTHING)

    def _merged(self, variants: list[Schema]) -> Schema:
        keys: Schema = {}
        for each in variants:
            for key, part in each["properties"].items():
                before = keys.setdefault(key, part)
                if before != part:  # the tag
                    tags = {**dict.fromkeys(before["enum"]), **dict.fromkeys(part["enum"])}
                    told = " ".join((before["description"], part["description"]))
                    keys[key] = {**part, "enum": list(tags), "description": told}
        return {"type": "object", "properties": keys}


def _version(structural: _Structural) -> Schema:
    return {
        "name": resource.VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            _column("Slots", ".status.slots.open", "integer"),
            _column("Owned", ".status.replicas", "integer"),
            _column("Standbys", ".status.standbys", "integer"),
            _column("Lag", ".status.lag", "integer"),
            _column("Storm", ".status.storm", "boolean"),
            _column("Change", ".status.change.state", "string"),
            _column("Ready", '.status.conditions[?(@.type=="Ready")].status', "string"),
            _column("Reason", '.status.conditions[?(@.type=="Ready")].reason', "string"),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ],
        "schema": {
            "openAPIV3Schema": {
                "description": "A fleet of workers of one Kafka consumer group.",
                "type": "object",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": _spec(structural.fleet()),
                    "status": _status(),
                },
            }
        },
    }


def _column(name: str, path: str, kind: str) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path}


def _spec(fleet: Schema) -> Schema:
    words = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "type": "object",
        "required": ["fleet"],
        "properties": {
            "replicas": {
                "description": "Wanted slots, for scaling.policy external: kubectl scale and "
                "autoscalers write it.",
                "type": "integer",
                "minimum": 0,
                "maximum": 10000,
            },
            "fleet": {"description": "One entry of `fleets:` in fleet.yaml.", **fleet},
            "clusterRef": {
                "description": "Kafka cluster of the group.",
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {
                        "description": "Name in `clusters` of the operator's chart.",
                        "type": "string",
                        "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
                    }
                },
            },
            "podTemplate": {
                "description": "Strategic merge patch over the workers' pods.",
                "type": "object",
                "properties": {
                    "metadata": {
                        "type": "object",
                        "properties": {"labels": words, "annotations": words},
                    },
                    "spec": {
                        "description": "Patch of the PodSpec; the worker's container is `worker`.",
                        **_ANYTHING,
                    },
                },
            },
            "scaling": {
                "description": "Who decides on the number of slots; default: fleet.scaling.",
                "type": "object",
                "required": ["policy"],
                "properties": {"policy": {"type": "string", "enum": [resource.EXTERNAL]}},
            },
            "deletionPolicy": {
                "description": "Drain: workers finish their batches and leave the group "
                "together. Orphan: workers go on. Default: Drain.",
                "type": "string",
                "enum": ["Drain", resource.ORPHAN],
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "self.fleet.group == oldSelf.fleet.group",
                "message": "the group cannot change; create another ConsumerFleet",
            },
            {
                "rule": "has(self.clusterRef) == has(oldSelf.clusterRef) && "
                "(!has(self.clusterRef) || self.clusterRef.name == oldSelf.clusterRef.name)",
                "message": "the cluster cannot change; create another ConsumerFleet",
            },
            {
                "rule": "!has(self.replicas) || has(self.scaling)",
                "message": "spec.replicas needs spec.scaling.policy external; without it "
                "fleet.scaling decides",
            },
        ],
    }


def _status() -> Schema:
    number, word = {"type": "integer"}, {"type": "string"}
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": word,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": word,
            "message": word,
            "observedGeneration": number,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": number,
            "replicas": {"description": "Slots with an owner.", **number},
            "selector": {"description": "Selects the pods that own a slot.", **word},
            "slots": {
                "type": "object",
                "properties": {"open": number, "owned": number, "ready": number},
            },
            "standbys": {"description": "Warm workers without a slot.", **number},
            "lag": {"description": "Waiting records, to two digits.", **number},
            "storm": {"description": "Whether the group has a rebalance storm.", "type": "boolean"},
            "change": {
                "description": "The running change, or the last one.",
                "type": "object",
                "properties": {
                    "plan": word,
                    "state": word,
                    "step": word,
                    "message": word,
                    "actor": word,
                    "startedAt": {"type": "string", "format": "date-time"},
                },
            },
            "lastReceipt": {
                "description": "What the coordinator recorded of the last step.",
                "type": "object",
                "properties": {
                    "plan": word,
                    "result": word,
                    "rebalances": number,
                    "expectedRebalances": word,
                    "movedPartitions": number,
                    "message": word,
                },
            },
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }
