"""Merges a user's patch over a pod template, as Kubernetes' strategic merge patch does. Pure.

Problem: affinity, sidecars, priority, extra volumes and the like are a platform's, and a key of
fleet.yaml for each would repeat the API of pods. Choice: one patch, merged by the rules that
`kubectl patch` uses: mappings key by key, null removes, lists of named things by their name. Cost:
the rules of the lists that a pod has are written here a second time.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet.errors import ConfigError

_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""The key by which the entries of a list are the same; any other list but ADDED is replaced."""
_ADDED: Final = frozenset({"envFrom", "tolerations"})
"""Lists whose entries come after Fleet's own: a Secret with the login must not get lost."""


def overlaid(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mapping with the patch in it; neither is changed."""
    made = dict(base)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping):
            below = made.get(key)
            made[key] = overlaid(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, list | tuple) and isinstance(made.get(key), list):
            made[key] = _list(key, made[key], list(value))
        else:
            made[key] = value
    return made


def _list(key: str, base: list[Any], patch: list[Any]) -> list[Any]:
    if key in _ADDED:
        return [*base, *(each for each in patch if each not in base)]
    name = _KEYS.get(key)
    if name is None:
        return patch
    made = list(base)
    for each in patch:
        if not isinstance(each, Mapping) or name not in each:
            raise ConfigError(f"podTemplate: an entry of {key} has no {name}")
        found = next((i for i, b in enumerate(made) if b.get(name) == each[name]), None)
        if found is None:
            made.append(overlaid({}, each))
        elif each.get("$patch") == "delete":
            del made[found]
        else:
            made[found] = overlaid(made[found], each)
    return made
