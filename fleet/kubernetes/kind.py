"""Opens `runtime: {kind: kubernetes}` for managers and workers.

A manager uses the kubeconfig or its pod's service account. A worker uses its pod's service account,
which may only own its fleet's slots. Imports that only a manager needs stand in functions, since
each worker's pod pays for the others.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import FleetSpec, KubernetesRuntimeSpec, RuntimeSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.api import connect
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots.store import Store
from fleet.worker.pod_environment import raw_revision, template_of

if TYPE_CHECKING:
    from fleet.act.runtime import OperatorOptions
    from fleet.decide.adopted import Adopted
    from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime


class KubernetesKind:
    """Implements `fleet.act.runtime.RuntimeKind` for a Kubernetes namespace."""

    def open(
        self, spec: FleetSpec, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> "KubernetesRuntime":
        """Opens the file's namespace. Raises ConfigError if no kubeconfig leads there."""
        from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime  # noqa: PLC0415
        from fleet.kubernetes.leases.lease_store import PatientStore  # noqa: PLC0415

        del home  # what a manager has to remember stands on the API server
        runtime = _runtime_of(spec.runtime)
        api = connect(
            namespace=runtime.namespace, context=runtime.context, environ=environ, clock=clock
        )
        store = LeaseStore.for_manager(
            api, cluster=spec.cluster.name, clock=clock, lease=runtime.lease
        )
        patient = cast("LeaseStore", PatientStore(store, clock=clock))
        return KubernetesRuntime(spec, api=api, store=patient, clock=clock)

    def deployments(
        self, runtime: RuntimeSpec, *, environ: Mapping[str, str], clock: Clock
    ) -> "tuple[Adopted, ...]":
        """Returns the Deployments of external consumers in the namespace."""
        from fleet.kubernetes.deployment.adoption import deployments_of  # noqa: PLC0415

        place = _runtime_of(runtime)
        api = connect(
            namespace=place.namespace, context=place.context, environ=environ, clock=clock
        )
        with api:
            return deployments_of(api)

    def store(
        self, settings: WorkerSettings, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> Store:
        """Opens the slots of one group for one of its pods."""
        del home
        group, revision = settings.group, settings.revision
        runtime = _runtime_of(group.runtime)
        namespace = environ.get("FLEET_NAMESPACE") or runtime.namespace
        api = connect(namespace=namespace, context=runtime.context, environ=environ, clock=clock)
        return LeaseStore.for_worker(
            api,
            cluster=settings.cluster.name,
            group=group.group,
            revision=revision if template_of(revision) else raw_revision(revision, environ),
            lease=runtime.lease,
            clock=clock,
        )

    def declared(self, resource: Mapping[str, Any], clusters: Path) -> tuple[dict[str, Any], ...]:
        """See `fleet.kubernetes.operator.resource`."""
        from fleet.kubernetes.operator.resource import objects_of  # noqa: PLC0415

        return objects_of(resource, clusters)

    def operate(
        self,
        options: "OperatorOptions",
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """See `fleet.kubernetes.operator.process`."""
        from fleet.kubernetes.operator.process import Operator  # noqa: PLC0415

        with Operator(options, clock=clock, say=say) as operator:
            operator.run(stop)


def _runtime_of(runtime: object) -> KubernetesRuntimeSpec:
    if not isinstance(runtime, KubernetesRuntimeSpec):
        raise ConfigError("runtime.kind is not kubernetes, so there is no namespace")
    return runtime


KIND: Final = KubernetesKind()
