"""fleet.yaml as values: every limit is bounded, an unknown key is an error.

Problem: one file says what a cluster's fleets shall be, people write it by hand, and a typo
must not start anything. Choice: pydantic models that forbid unknown keys; `fleet.config.load` reads
the file, expands `${NAME}` and names file, line, key and the nearest allowed key. The worker
is a union tagged by `protocol`, since classic and KIP-848 members take different settings [23]:
`assignor` and `session_timeout` are errors under `protocol: consumer`.
Secrets are never in the file: security settings name environment variables or files.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from fleet.config.spec_cluster import (
    ClusterSpec,
    Oidc,
    Sasl,
    Security,
    Strict,
    Tls,
    TokenProvider,
)
from fleet.config.spec_runtime import KubernetesRuntimeSpec, LocalRuntimeSpec, RuntimeSpec
from fleet.config.spec_values import Duration, SparkPlace, seconds
from fleet.config.spec_watching import Alerts, DagsterSpec, ExporterSpec, History, Selection, UiSpec
from fleet.config.topic_patterns import matches, topic_entry

__all__ = [
    "Alerts",
    "ClusterSpec",
    "DagsterSpec",
    "ExporterSpec",
    "History",
    "KubernetesRuntimeSpec",
    "LocalRuntimeSpec",
    "Oidc",
    "RuntimeSpec",
    "Sasl",
    "Security",
    "Selection",
    "Strict",
    "Tls",
    "TokenProvider",
    "UiSpec",
    "seconds",
]  # said here for everybody else

CONSUMER_HEARTBEAT = 5.0
"""Seconds: `group.consumer.heartbeat.interval.ms` as Kafka 4 ships it."""
CONSUMER_SESSION = 45.0
"""Seconds: `group.consumer.session.timeout.ms` as Kafka 4 ships it; a group config may raise it."""


class BatchSpec(Strict):
    """Bounds of one batch [8]: records inline, records by ranges, waiting, running."""

    inline: Annotated[int, Field(ge=1, le=500_000)] = 50_000
    """Most records of a batch that the member reads itself."""
    ranges: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000
    """Most records of a batch whose offset ranges Spark's tasks read."""
    max_wait: Annotated[Duration, Field(ge=0.0, le=60.0)] = 0.2
    """From a small batch's end to the next; a stream's begins at once where Spark is idle [8]."""
    max_seconds: Annotated[Duration, Field(ge=0.1, le=3600.0)] = 10.0
    """How long a batch should take: the next one is made smaller where it took longer, but where
    a busy Spark takes as long for smaller ones."""
    memory: Annotated[int, Field(ge=0, le=1 << 20)] = 256
    """Most MiB of files in /dev/shm by which a backlog goes to a Spark on this machine; 0: none."""


class _WorkerBase(Strict):
    entrypoint: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`package.module:function`, called with (df, context)."""
    python_path: tuple[str, ...] = ()
    """Folders on the worker's module path; the entrypoint and what it imports from them belong to
    the revision, which has a copy."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the worker; part of the revision as written. `${NAME}` is looked up by the
    worker in its own environment, so that no secret is frozen into a revision."""
    membership: Literal["static", "dynamic"] = "static"
    """static: each slot has a group.instance.id, and a roll costs no rebalance."""
    batch: BatchSpec = BatchSpec()
    """Bounds of one batch."""
    reading: Literal["auto", "inline", "ranges"] = "auto"
    """How records reach Spark [8]: auto names ranges from three times batch.inline on."""
    max_poll_interval: Annotated[Duration, Field(ge=10.0, le=86400.0)] = 300.0
    """max.poll.interval.ms, the rebalance timeout of a classic group."""
    batch_timeout: Annotated[Duration, Field(ge=1.0, le=86400.0)] | None = None
    """Seconds one batch may take; default max_poll_interval - drain_timeout."""
    entrypoint_patience: Annotated[Duration, Field(ge=1.0, le=86400.0)] = 600.0
    """Seconds that the entrypoint may fail for all it is given before its worker ends [43]."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """isolation.level of the reader."""
    on_truncated: Literal["stop", "skip"] = "stop"
    """What to do if records are gone or damaged before they were read; both name the loss."""
    metadata_refresh: Annotated[Duration, Field(ge=1.0, le=300.0)] = 30.0
    """How soon new partitions, new topics of a pattern and topics made again are seen."""
    dead_letter_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """Where records go that fail alone; absent = their partition is quarantined [9]."""
    start_from: Literal["earliest", "latest"] = "earliest"
    """Where a topic begins that the group never committed; partitions added later: earliest.
    Commits that Kafka deleted count [53]."""
    spark: SparkPlace = "shared"
    """shared (the Connect server of this home or namespace), sc://host:port, or local[n]."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """From which level on the worker's log has what the job and its libraries log."""
    spark_ui: bool = False
    """Spark's own web UI on this machine, its address in `fleet status GROUP`; without a login.
    The shared server takes it up when it starts next; of `sc://` it is that cluster's business."""
    http: str = "127.0.0.1:0"
    """Address of health, readiness and metrics; port 0 = a free one."""


class ClassicWorker(_WorkerBase):
    """A member of the classic protocol (JoinGroup/SyncGroup)."""

    protocol: Literal["classic"] = "classic"
    """The rebalance protocol: JoinGroup and SyncGroup."""
    assignor: Literal["range", "cooperative-sticky"] = "cooperative-sticky"
    """partition.assignment.strategy."""
    session_timeout: Annotated[Duration, Field(ge=6.0, le=1800.0)] = 180.0
    """session.timeout.ms: after it a silent member is removed."""
    heartbeat_interval: Annotated[Duration, Field(ge=0.5, le=60.0)] = 0.5
    """heartbeat.interval.ms: how soon a member hears of a rebalance; at most a third of
    session_timeout."""


class ConsumerWorker(_WorkerBase):
    """A KIP-848 member; the group's own config rules its session."""

    protocol: Literal["consumer"]
    """KIP-848: the coordinator assigns."""


class Replicas(Strict):
    """Bounds of the number of slots, and warm workers beside them."""

    min: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Fewest slots."""
    max: Annotated[int, Field(ge=1, le=10_000)] = 12
    """Most slots; partitions bound them too."""
    standby: Annotated[int, Field(ge=0, le=100)] = 1
    """Warm workers without a slot."""

    @model_validator(mode="after")
    def _ordered(self) -> "Replicas":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        return self


class _ScalingBase(Strict):
    up_after: Annotated[Duration, Field(ge=0.0, le=86400.0)] = 0.0
    """How long growth must be called for before it is done."""
    down_after: Annotated[Duration, Field(ge=0.0, le=86400.0)] = 300.0
    """How long shrinking must be called for, at every look, before it is done."""
    max_step: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Most slots opened or left in one plan; None = no bound."""


class FixedScaling(_ScalingBase):
    """Always this many."""

    policy: Literal["fixed"]
    """Always the same number."""
    workers: Annotated[int, Field(ge=0, le=10_000)]
    """How many."""


class PartitionsScaling(_ScalingBase):
    """In proportion to partitions."""

    policy: Literal["partitions"] = "partitions"
    """In proportion to partitions."""
    per_worker: Annotated[int, Field(ge=1, le=100_000)] = 4
    """Partitions for each worker."""


class LagScaling(_ScalingBase):
    """One worker per so many waiting records."""

    policy: Literal["lag"]
    """By the records that wait."""
    records_per_worker: Annotated[int, Field(ge=1)] = 10_000
    """Waiting records for each worker."""


class Rollout(Strict):
    """How new code replaces old."""

    max_parallel: Annotated[int, Field(ge=1, le=1000)] = 1
    """Slots that are handed over at the same time, after the canary."""
    drain_timeout: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 30.0
    """How long a worker may take to finish its batch, commit and close."""
    bake: Annotated[Duration, Field(ge=0.0, le=86400.0)] = 30.0
    """The canary passes after this long without data and without error; a batch in hand is data."""
    canary_batches: Annotated[int, Field(ge=1, le=1000)] = 3
    """The canary passes after this many committed batches."""
    warm_timeout: Annotated[Duration, Field(ge=5.0, le=3600.0)] = 120.0
    """How long new standbys may take to become warm."""


class StormSpec(Strict):
    """More rebalances, or more moved partitions, than this in the window is a storm."""

    rebalances: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Rebalances that a window may hold."""
    window: Annotated[Duration, Field(ge=10.0, le=604_800.0)] = 600.0
    """How long a window is."""
    moved: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Partitions that may change their owner in the window; None = not limited."""
    calm: Annotated[Duration, Field(ge=0.0, le=86_400.0)] = 120.0
    """A storm ends once the window has held at most half of the budget for this long."""


class CreateTopic(Strict):
    """Create the group's topics where they are missing."""

    partitions: Annotated[int, Field(ge=1, le=100_000)] = 12
    """Of a topic that is created."""
    replication: Annotated[int, Field(ge=1, le=10)] = 1
    """Replication factor of a topic that is created."""


Topic = Annotated[str, BeforeValidator(topic_entry)]
Worker = Annotated[ClassicWorker | ConsumerWorker, Field(discriminator="protocol")]
Scaling = Annotated[FixedScaling | PartitionsScaling | LagScaling, Field(discriminator="policy")]


class GroupSpec(Strict):
    """One fleet: a consumer group and what shall hold it up."""

    group: Annotated[str, Field(min_length=1, max_length=249)]
    """group.id."""
    mode: Literal["observe", "plan", "act"] | None = None
    """Overrides the file's mode for this group."""
    owner: str = ""
    """The team that is called; a label of metrics and alerts."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Names and values for `--select` and Dagster; metrics and alerts have `owner` alone."""
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)]
    """Names, or regular expressions from ^ to $ or .* that plan, members and broker read alike."""
    create: CreateTopic | None = None
    """Create topics that are missing; absent: they are waited for."""
    worker: Worker | None = None
    """Absent = other people's consumers: observed only."""
    replicas: Replicas = Replicas()
    """Bounds of the number of slots, and warm workers beside them."""
    scaling: Scaling = PartitionsScaling()
    """How many slots are wanted."""
    rollout: Rollout = Rollout()
    """How new code replaces old."""
    storm: StormSpec = StormSpec()
    """What is a storm of this group."""
    max_lag: Annotated[Duration, Field(ge=1.0, le=2_592_000.0)] | None = None
    """How old its oldest waiting record may be; None: alerts.lag."""
    runtime: RuntimeSpec = LocalRuntimeSpec()
    """Where its workers run; the same place for all fleets of a file."""

    @property
    def is_changeable(self) -> bool:
        """Whether anything of it may be changed: workers, or a Deployment to scale."""
        adopts = isinstance(self.runtime, KubernetesRuntimeSpec) and self.runtime.deployment
        return self.worker is not None or bool(adopts)

    @model_validator(mode="after")
    def _dead_letters_end(self) -> "GroupSpec":
        topic = self.worker.dead_letter_topic if self.worker else None
        for entry in self.topics:
            if topic is not None and matches(entry, topic):
                raise ValueError(
                    f"worker.dead_letter_topic {topic} is read by this group itself (topics: "
                    f"{entry}), so a bad record would go round for ever: name another topic"
                )
        return self

    @property
    def batch_limit(self) -> float:
        """Seconds that one batch may take; 0 without workers."""
        if self.worker is None:
            return 0.0
        longest = self.worker.max_poll_interval - self.rollout.drain_timeout
        return self.worker.batch_timeout or longest

    @property
    def canary_limit(self) -> float:
        """Seconds that new code's proof may take: `bake`, and batches that outlive it."""
        return self.rollout.bake + self.rollout.canary_batches * self.batch_limit

    @model_validator(mode="after")
    def _timeouts_fit(self) -> "GroupSpec":
        worker = self.worker
        if worker is None:
            return self
        lease = self.runtime.lease
        if worker.max_poll_interval <= self.rollout.drain_timeout:
            raise ValueError(
                f"worker.max_poll_interval {worker.max_poll_interval:g}s must exceed "
                f"rollout.drain_timeout {self.rollout.drain_timeout:g}s, else a drain outlasts the "
                "group's rebalance timeout"
            )
        longest = worker.max_poll_interval - self.rollout.drain_timeout
        if worker.batch_timeout is not None and worker.batch_timeout > longest:
            raise ValueError(
                f"worker.batch_timeout {worker.batch_timeout:g}s must be at most "
                f"worker.max_poll_interval - rollout.drain_timeout = {longest:g}s, else a batch "
                "that hangs outlasts the group's rebalance timeout"
            )
        if isinstance(worker, ConsumerWorker) and lease + 5 >= CONSUMER_SESSION:
            raise ValueError(
                f"runtime.lease {lease:g}s + 5s must be below the session timeout of KIP-848 "
                f"groups, {CONSUMER_SESSION:g}s by Kafka's default, else a death is a rebalance"
            )
        if isinstance(worker, ClassicWorker):
            if lease + 5 >= worker.session_timeout:
                raise ValueError(
                    f"runtime.lease {lease:g}s + 5s must be below worker.session_timeout "
                    f"{worker.session_timeout:g}s, else a death is a rebalance"
                )
            if worker.max_poll_interval < worker.session_timeout:
                raise ValueError(
                    f"worker.max_poll_interval {worker.max_poll_interval:g}s is below "
                    f"worker.session_timeout {worker.session_timeout:g}s, which librdkafka refuses"
                )
            if worker.heartbeat_interval * 3 > worker.session_timeout:
                raise ValueError(
                    f"worker.heartbeat_interval {worker.heartbeat_interval:g}s must be at most a "
                    f"third of worker.session_timeout {worker.session_timeout:g}s"
                )
        return self


class FleetSpec(Strict):
    """The whole file: one cluster and its fleets."""

    cluster: ClusterSpec = ClusterSpec()
    """The Kafka cluster."""
    mode: Literal["observe", "plan", "act"] | None = None
    """None: plan, but act for the embedded cluster."""
    storm: StormSpec = StormSpec()
    """Of groups that no fleet declares; a declared one has its own, or that of `defaults`."""
    history: History = History()
    """Where every group's past is recorded."""
    exporter: ExporterSpec = ExporterSpec()
    """Prometheus metrics."""
    ui: UiSpec = UiSpec()
    """The page of `fleet ui`."""
    alerts: Alerts = Alerts()
    """When somebody is called."""
    dagster: DagsterSpec = DagsterSpec()
    """What Dagster does by itself."""
    fleets: tuple[GroupSpec, ...] = ()
    """One entry for each consumer group."""

    @model_validator(mode="after")
    def _one_fleet_per_group(self) -> "FleetSpec":
        seen: set[str] = set()
        for fleet in self.fleets:
            if fleet.group in seen:
                raise ValueError(f"group {fleet.group!r} is declared twice")
            seen.add(fleet.group)
        return self

    @model_validator(mode="after")
    def _one_runtime(self) -> "FleetSpec":
        places: dict[str, str] = {}
        for fleet in self.fleets:
            places.setdefault(fleet.runtime.place(), fleet.group)
        if len(places) > 1:
            told = ", ".join(f"{where} (group {group})" for where, group in places.items())
            raise ValueError(
                f"the fleets of one file share one runtime, and this one names several: {told}; "
                "write a file for each"
            )
        return self

    @property
    def runtime(self) -> RuntimeSpec:
        """Where the file's workers run: the same place for all its fleets."""
        return self.fleets[0].runtime if self.fleets else LocalRuntimeSpec()

    def mode_of(self, group: GroupSpec) -> Literal["observe", "plan", "act"]:
        """What may be done for a group: its own mode, the file's, or the default."""
        if not group.is_changeable:
            return "observe"
        default: Literal["plan", "act"] = (
            "act" if self.cluster.bootstrap_servers == "embedded" else "plan"
        )
        return group.mode or self.mode or default

    def fleet(self, group: str) -> GroupSpec | None:
        """The declared fleet of that group id."""
        return next((f for f in self.fleets if f.group == group), None)
