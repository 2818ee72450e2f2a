"""Finds who else changed an object that Fleet applies: pure.

Problem: `kubectl edit`, a GitOps tool or an autoscaler may change a Deployment, and nothing of
Fleet's says why it differs from fleet.yaml. Choice: the API server records who owns each field
(`managedFields`). A field that Fleet applied and that only another manager owns now was changed by
it. Cost: a writer that uses Fleet's manager name, or that wrote the same value, is not found.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleet.kubernetes.client.object_names import MANAGER
from fleet.text import few

Fields = Mapping[str, Any]

_OURS: Final = frozenset({MANAGER, "kube-controller-manager"})
"""Field managers that write a Deployment for Fleet: itself, and the Deployment's controller."""
_NOTES: Final = "template.metadata.annotations"
"""No setting of Fleet's: `kubectl rollout restart` writes here."""
_MOST: Final = 4
"""Fields that a sentence names."""


def external_writes(found: Fields) -> tuple[str, ...]:
    """Says who owns fields of the spec that Fleet applied once and owns no more, by field manager.

    Fields are paths such as `template.spec.containers[worker].image`. Empty if Fleet never applied
    the object, or gave it up.
    """
    entries = found["metadata"].get("managedFields") or ()
    by_us = [each for each in entries if each.get("manager") in _OURS]
    ours = [each for each in by_us if each.get("subresource") != "scale"]  # autoscalers use that
    if not any(each.get("manager") == MANAGER for each in ours):
        return ()
    owned = {path for each in ours for path in _spec_paths(each)}
    writes = []
    for each in entries:
        if each in ours or each.get("subresource") == "status":
            continue
        paths = (path for path in _spec_paths(each) if not path.startswith(_NOTES))
        taken = tuple(sorted(set(paths) - owned))
        if taken:
            at = f" at {each['time']}" if each.get("time") else ""  # /scale leaves none
            writes.append(f"{each.get('manager')} changed {few(taken, _MOST)}{at}")
    return tuple(writes)


def _spec_paths(entry: Fields) -> Iterator[str]:
    return _leaves((entry.get("fieldsV1") or {}).get("f:spec") or {}, "")


def _leaves(fields: Fields, path: str) -> Iterator[str]:
    """Yields the paths of all fields without fields of their own."""
    inner = [(key, value) for key, value in fields.items() if key != "."]
    if not inner and path:
        yield path
    for key, value in inner:
        yield from _leaves(value, _joined(path, key))


def _joined(path: str, key: str) -> str:
    """Appends a key of `fieldsV1` (`f:name`, `k:{"name":"worker"}`, `v:…`) to a path."""
    kind, _, rest = key.partition(":")
    if kind != "f":
        name = rest.partition('"name":"')[2].partition('"')[0]
        return f"{path}[{name or rest}]"
    return f"{path}.{rest}" if path else rest
