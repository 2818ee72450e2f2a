"""ConsumerFleets of a test, and the operator that keeps them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fleet.act.runtime import OperatorOptions
from fleet.clock import SystemClock
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.operator.process import Operator
from fleet.kubernetes.operator.resource import GROUP, KIND, VERSION
from tests.support import waiting
from tests.support.needs import repository

CRD = repository() / "k8s" / "chart" / "files" / "consumerfleets.yaml"


def crd() -> dict[str, Any]:
    """The definition that the chart installs."""
    return dict(yaml.safe_load(CRD.read_text(encoding="utf-8")))


def resource(name: str, namespace: str, **spec: Any) -> Object:
    """One ConsumerFleet as it is applied."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def serves(slots: int) -> Callable[[Object], bool]:
    """So many slots are open and ready, a standby waits, and no change runs; asked of a status."""

    def reached(status: Object) -> bool:
        kinds = {c["type"]: c["status"] for c in status.get("conditions", ())}
        return (
            status.get("slots") == {"open": slots, "owned": slots, "ready": slots}
            and status.get("standbys") == 1
            and kinds == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
        )

    return reached


class Declared:
    """The resources of one namespace."""

    def __init__(self, api: Api, environ: dict[str, str], folder: Path) -> None:
        self.api = api
        self._environ = environ
        self._folder = folder
        self.clusters = folder / "clusters"
        self.clusters.mkdir()
        self.said: list[str] = []

    def cluster(self, bootstrap: str, name: str = "main", **more: Any) -> None:
        """Write the file of a cluster."""
        document = {"cluster": {"name": name, "bootstrap_servers": bootstrap}, **more}
        (self.clusters / f"{name}.yaml").write_text(yaml.safe_dump(document))

    def write(self, name: str, **spec: Any) -> None:
        """Create a resource, or replace what it declares."""
        self.api.apply(resource(name, self.api.namespace, **spec))

    def made(self, *others: str) -> Operator:
        """The operator of this namespace and others, as its command makes it."""
        options = OperatorOptions(
            namespaces=(self.api.namespace, *others),
            clusters=self.clusters,
            home=self._folder / "home",
            environ=self._environ,
            actor="operator test",
            interval=1.0,
        )
        return Operator(options, clock=SystemClock(), say=self.said.append)

    @contextmanager
    def operator(self, *others: str) -> Iterator[Operator]:
        """The operator while it runs."""
        with self.made(*others) as operator, waiting.meanwhile(operator.run):
            yield operator

    def found(self, name: str) -> Object | None:
        """The resource as it is now."""
        return self.api.get(KIND, name)

    def condition(self, name: str, kind: str) -> dict[str, str]:
        """One condition of a resource; empty where there is none yet."""
        status = (self.found(name) or {}).get("status") or {}
        return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})

    def until(self, name: str, kind: str, reason: str, status: str = "True") -> str:
        """Wait for a condition with that reason; its message."""

        def reached() -> bool:
            found = self.condition(name, kind)
            return (found.get("reason"), found.get("status")) == (reason, status)

        waiting.until(
            reached, f"{kind} of {name} to be {status} ({reason})",
            progress=lambda: str((self.found(name) or {}).get("status")),
            picture=lambda: f"{self.found(name)}\n" + "\n".join(self.said[-30:]),
        )  # fmt: skip
        return self.condition(name, kind)["message"]

    def gone(self, name: str) -> None:
        """Wait until the resource is deleted."""
        waiting.until(
            lambda: self.found(name) is None, f"{name} to be deleted",
            progress=lambda: len(self.said),
            picture=lambda: f"{self.found(name)}\n" + "\n".join(self.said[-30:]),
        )  # fmt: skip

    def events(self, name: str) -> dict[str, list[str]]:
        """Messages of a resource's Events, by reason."""
        found: dict[str, list[str]] = {}
        for each in self.api.find("Event")[0]:
            if each["involvedObject"]["name"] == name and each["involvedObject"]["kind"] == KIND:
                found.setdefault(each["reason"], []).append(each["message"])
        return found
