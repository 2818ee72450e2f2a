"""Where workers run, as fleet.yaml says it: this machine, or a Kubernetes namespace.

All fleets of one file share one runtime: slots, leases and the manager's memory live in one
place. What belongs to a pod (image, resources, places) is each fleet's own.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from fleet.config.spec_cluster import Strict
from fleet.config.spec_values import Duration

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class LocalRuntimeSpec(Strict):
    """Workers are processes of this machine."""

    kind: Literal["local"] = "local"
    """Processes of this machine."""
    lease: Annotated[Duration, Field(ge=2.0, le=600.0)] = 10.0
    """How long a slot stays with a holder who is silent."""

    def place(self) -> str:
        """Where slots live, in words."""
        return "local"


class SparkConnect(Strict):
    """The shared Spark Connect server of a namespace (`worker.spark: shared`)."""

    image: str | None = None
    """None: the worker's image, which holds the server too; one that serves keeps what it has."""
    memory: Annotated[str, Field(pattern=r"^[1-9]\d{0,5}[mg]$")] = "2g"
    """Of the driver's heap, as Spark writes it."""
    master: str = "local[*]"
    """Spark's master in the server."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """requests and limits of the container; empty: memory for the heap and its surroundings."""


class KubernetesRuntimeSpec(Strict):
    """Workers are pods of one Deployment (package k8s)."""

    kind: Literal["kubernetes"]
    """Pods."""
    namespace: DnsLabel = "default"
    """Of workers, slots and the Spark server."""
    context: str | None = None
    """Of the kubeconfig; None: the pod's own service account, or else the current context."""
    image: str | None = None
    """What workers run; needed wherever `worker` is declared."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """imagePullPolicy."""
    pull_secrets: tuple[DnsLabel, ...] = ()
    """imagePullSecrets."""
    deployment: DnsLabel | None = None
    """The Deployment of other people's consumers (no `worker`): observed and scaled."""
    env_from: tuple[DnsLabel, ...] = ()
    """Secrets whose keys become environment variables: Kafka credentials come from here."""
    mounts: dict[DnsLabel, Annotated[str, Field(pattern=r"^/")]] = Field(default_factory=dict)
    """Secrets mounted as files, each under its path: certificates, for example."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """requests and limits of a worker, as Kubernetes writes them."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """nodeSelector."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """As Kubernetes writes them."""
    spread: bool = True
    """Workers of a fleet over nodes and zones as evenly as can be (preferred, not required)."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Of the pods, beside ours."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Of the pods, beside ours."""
    http_port: Annotated[int, Field(ge=1024, le=65535)] = 9464
    """Named `http` in the pod: probes and metrics."""
    spark: SparkConnect = SparkConnect()
    """The shared Spark Connect server of the namespace."""
    lease: Annotated[Duration, Field(ge=2.0, le=600.0)] = 30.0
    """How long a slot stays with a holder who is silent."""

    def place(self) -> str:
        """Where slots live, in words."""
        where = f" of context {self.context}" if self.context else ""
        return f"kubernetes namespace {self.namespace}{where}"


RuntimeSpec = Annotated[LocalRuntimeSpec | KubernetesRuntimeSpec, Field(discriminator="kind")]
