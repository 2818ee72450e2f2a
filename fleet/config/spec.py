"""fleet.yaml as values: every limit is bounded, an unknown key is an error.

Problem: one file says what a cluster's fleets shall be, people write it by hand, and a typo
must not start anything. Choice: pydantic models that forbid unknown keys; `fleet.config.load` reads
the file, expands `${NAME}` and names file, line, key and the nearest allowed key. The worker
is a union tagged by `protocol`, since classic and KIP-848 members take different settings [23]:
`assignor` and `session_timeout` are errors under `protocol: consumer`.
Secrets are never in the file: security settings name environment variables or files.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleet.config.topic_patterns import matches, topic_entry
from fleet.model import require_no_login

# How clients reach a cluster, as fleet.yaml says it; part of `fleet.config.spec`.
#
# Secrets are never in the file: these settings name environment variables or files.


class Strict(BaseModel):
    """No unknown keys, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _variable(value: str) -> str:
    """ValueError, which does not repeat it, for what is rather a secret than a variable's name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value):
        raise ValueError(
            "names an environment variable: write its name (letters, digits and _), not what it "
            "holds"
        )
    return value


def _place_of_file(value: str) -> str:
    """The same for what a file holds instead of its path."""
    if "\n" in value or "-----BEGIN" in value:
        raise ValueError("names a file: write its path, not what it holds")
    return value


Variable = Annotated[str, AfterValidator(_variable)]
PlaceOfFile = Annotated[str, AfterValidator(_place_of_file)]


def _one_of(model: BaseModel, part: str, *keys: str) -> None:
    """ValueError unless exactly one of these keys is written for a part of a login."""
    if len([key for key in keys if getattr(model, key)]) != 1:
        allowed = f"{', '.join(keys[:-1])} and {keys[-1]}"
        raise ValueError(f"needs exactly one of {allowed} for the {part}")


class Oidc(Strict):
    """Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    endpoint: Annotated[str, Field(pattern=r"^https?://(\[[^]/@\s]+\]|[^/@:\s]+)(:\d+)?(/\S*)?$")]
    """The token endpoint. `http://` only where nobody listens in between."""
    client_id: str | None = None
    """The id itself: it is no secret. `${NAME}` is read as client_id_env."""
    client_id_env: Variable | None = None
    """Environment variable of the client id."""
    client_id_file: PlaceOfFile | None = None
    """File of the client id."""
    client_secret_env: Variable | None = None
    """Environment variable of the client secret."""
    client_secret_file: PlaceOfFile | None = None
    """File of the client secret."""
    header_urlencode: bool = True
    """URL-encode id and secret in the header (RFC 6749); false: the endpoint does not decode."""
    scope: str | None = None
    """Scope that is asked for."""
    extensions: Mapping[str, Annotated[str, Field(pattern=r"^[^\x00-\x1f,]*$")]] = {}
    """SASL extensions sent along (KIP-342), such as logicalCluster of Confluent Cloud."""
    ca_file: PlaceOfFile | None = None
    """PEM of the authority that signed the endpoint's certificate; None: this machine's own."""

    @model_validator(mode="after")
    def _one_source(self) -> "Oidc":
        _one_of(self, "client id", "client_id", "client_id_env", "client_id_file")
        _one_of(self, "client secret", "client_secret_env", "client_secret_file")
        for name in self.extensions:
            # RFC 7628: letters only; `auth` is the token's own.
            if not (name.isascii() and name.isalpha()) or name == "auth":
                raise ValueError(f"{name!r} is no name of an extension: write letters, not auth")
        return self


class TokenProvider(Strict):
    """Tokens by a function, such as the signer of Amazon MSK: (token, when it expires)."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    """package.module:function, importable by every process that logs in, Spark's tasks too."""
    arguments: Mapping[str, str] = {}
    """By name; no secrets."""


class Sasl(Strict):
    """Where the SASL credentials are: environment variables or files; a name may be written."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """sasl.mechanism."""
    username: str | None = None
    """The name itself: it is no secret. `${NAME}` is read as username_env."""
    username_env: Variable | None = None
    """Environment variable of the name."""
    username_file: PlaceOfFile | None = None
    """File of the name."""
    password_env: Variable | None = None
    """Environment variable of the password."""
    password_file: PlaceOfFile | None = None
    """File of the password."""
    oidc: Oidc | None = None
    """Client credentials of mechanism OAUTHBEARER."""
    provider: TokenProvider | None = None
    """What gives tokens for OAUTHBEARER instead."""

    @model_validator(mode="after")
    def _one_source(self) -> "Sasl":
        # Settings that a manager wrote for its workers name every key (fleet.act.revisions).
        written = {name for name in self.model_fields_set if getattr(self, name) is not None}
        written -= {"mechanism"}
        if self.mechanism == "OAUTHBEARER":
            _one_of(self, "tokens", "oidc", "provider")
            if named := sorted(written - {"oidc", "provider"}):
                raise ValueError(f"mechanism OAUTHBEARER logs in with tokens, not by {named[0]}")
            return self
        if named := sorted(written & {"oidc", "provider"}):
            raise ValueError(f"{named[0]} goes with mechanism OAUTHBEARER, not {self.mechanism}")
        _one_of(self, "username", "username", "username_env", "username_file")
        _one_of(self, "password", "password_env", "password_file")
        return self


class Tls(Strict):
    """Paths of PEM files."""

    ca_file: PlaceOfFile | None = None
    """PEM file of the authorities that sign brokers' certificates; absent: the system's."""
    cert_file: PlaceOfFile | None = None
    """A client's certificate, with those of authorities between; brokers that ask for it log in
    by it (mTLS)."""
    key_file: PlaceOfFile | None = None
    """PEM file of the private key."""
    key_password_env: Variable | None = None
    """Environment variable of the key's password."""
    key_password_file: PlaceOfFile | None = None
    """File of the key's password."""

    @model_validator(mode="after")
    def _pair(self) -> "Tls":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs cert_file and key_file together, or neither")
        if self.key_password_env or self.key_password_file:
            _one_of(self, "key's password", "key_password_env", "key_password_file")
            if self.key_file is None:
                raise ValueError("has a key's password, but no cert_file and key_file")
        return self


class Security(Strict):
    """How clients reach the cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """security.protocol."""
    sasl: Sasl | None = None
    """The login of SASL_PLAINTEXT and SASL_SSL."""
    tls: Tls = Tls()
    """Certificates of SSL and SASL_SSL."""

    @model_validator(mode="after")
    def _protocol_fits(self) -> "Security":
        if self.protocol.startswith("SASL_") and self.sasl is None:
            raise ValueError(f"protocol {self.protocol} needs sasl: {{mechanism, username_env, …}}")
        if not self.protocol.startswith("SASL_") and self.sasl is not None:
            raise ValueError(
                f"sasl is given, but protocol {self.protocol} does not log in: "
                "write protocol SASL_SSL or SASL_PLAINTEXT"
            )
        if not self.protocol.endswith("SSL") and self.tls != Tls():
            raise ValueError(
                f"tls is given, but protocol {self.protocol} does not encrypt: "
                "write protocol SSL or SASL_SSL"
            )
        return self


def _addresses(value: str) -> str:
    """`embedded`, or host:port,host:port."""
    for address in [] if value == "embedded" else value.split(","):
        host, _, port = address.strip().rpartition(":")
        if "/" in address:
            raise ValueError(
                "is no host:port: brokers are named without a scheme or a path: not "
                "kafka://broker-1:9092 but broker-1:9092"
            )
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(
                "is no host:port: write broker-1:9092 (a port is from 1 to 65535), several with "
                "commas between, or embedded"
            )
    return value


class ClusterSpec(Strict):
    """One Kafka cluster; its name is part of every key Fleet stores."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "main"
    """Part of every key that Fleet stores, and a label of metrics."""
    bootstrap_servers: Annotated[str, AfterValidator(_addresses)] = "embedded"
    """`embedded` or host:port,host:port."""
    security: Security = Security()
    """How clients reach the cluster."""


# Values that people write in fleet.yaml and that pydantic has no type for: durations, patterns.


SPARK = r"^(shared|sc://.+|local\[(\d+|\*)\])$"
"""Where Spark is: the shared server, a Connect server, one JVM per worker."""
ANY_CHARACTER = re.DOTALL
"""How patterns of group ids are read: Kafka allows line breaks in an id, and `.*` is every id."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: Any) -> Any:
    """`200ms`, `10s`, `5m`, `1h`, `2d` or a number of seconds → seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", value)
        if match is None:
            raise ValueError("is no duration: write a number and ms, s, m, h or d, such as 30s")
        # 9 * 0.001 is 0.009000000000000001: a figure that nobody wrote, in messages and hashes.
        return round(float(match[1]) * _UNITS[match[2] or "s"], 6)
    if isinstance(value, bool):
        raise ValueError("is no duration: write a number and ms, s, m, h or d, such as 30s")  # noqa: TRY004
    return value


def regular_expression(value: Any) -> Any:
    """A pattern that Python's `re` reads."""
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
    return value


def without_token(value: str) -> str:
    """An address of Spark that holds no secret: it stands in files, settings and logs."""
    if re.search(r";\s*token=", value, re.IGNORECASE):
        raise ValueError(
            "holds a token, and a secret is never written in the file: leave `token=` out, set "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN where it runs (in pods: runtime.env_from), and write "
            "use_ssl=true, or use_ssl=false to send it in the clear"
        )
    return value


def folder_of_tables(value: str) -> str:
    """A folder or an address that everybody who reads the file finds, in pods too."""
    if "\0" in value:
        raise ValueError("has a NUL character, which no path holds: write it without")
    if value.removeprefix("file://").startswith("~"):
        raise ValueError(
            "begins with ~, which is another home for each who reads the file: write "
            "the whole path, such as /srv/history, or an address such as s3://bucket/history"
        )
    return value


Duration = Annotated[float, BeforeValidator(seconds)]
Pattern = Annotated[str, BeforeValidator(regular_expression)]
SparkPlace = Annotated[str, Field(pattern=SPARK), AfterValidator(without_token)]


# All fleets of a file share one runtime, where slots and leases live; what belongs to a pod is each
# fleet's own.


DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class LocalRuntimeSpec(Strict):
    """Workers are processes of this machine."""

    kind: Literal["local"] = "local"
    """Processes of this machine."""
    lease: Annotated[Duration, Field(ge=2.0, le=600.0)] = 10.0
    """How long a slot stays with an owner who is silent."""

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
    """How long a slot stays with an owner who is silent."""

    def place(self) -> str:
        """Where slots live, in words."""
        where = f" of context {self.context}" if self.context else ""
        return f"kubernetes namespace {self.namespace}{where}"


RuntimeSpec = Annotated[LocalRuntimeSpec | KubernetesRuntimeSpec, Field(discriminator="kind")]


# What looks at all groups and tells of them; part of `fleet.config.spec`.


class Selection(Strict):
    """Which groups: those that match a pattern of `allow` and none of `deny` (whole id)."""

    allow: tuple[Pattern, ...] = (".*",)
    """Patterns (whole id) of groups that are taken."""
    deny: tuple[Pattern, ...] = ()
    """Patterns of groups that are left out."""

    def takes(self, group: str) -> bool:
        """Whether a group is one of them."""
        if any(re.fullmatch(pattern, group, ANY_CHARACTER) for pattern in self.deny):
            return False
        return any(re.fullmatch(pattern, group, ANY_CHARACTER) for pattern in self.allow)


class History(Strict):
    """Where the history of every group is kept, and for how long."""

    path: (
        Annotated[str, AfterValidator(require_no_login), AfterValidator(folder_of_tables)] | None
    ) = None
    """Any path that Spark writes, without a login; None: `history` in FLEET_HOME."""
    retention: Annotated[Duration, Field(ge=3600.0, le=315_360_000.0)] = 2_592_000.0
    """How long rows are kept."""
    batch_interval: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 10.0
    """Between two batches of `fleet history sync --follow`."""
    spark: SparkPlace = "shared"
    """What reads the log: the home's server, which needs Java here, or Spark elsewhere."""
    batch_timeout: Annotated[Duration, Field(ge=10.0, le=86_400.0)] = 900.0
    """Seconds that Spark may take for one batch; then it is interrupted, and nothing is lost."""
    commit_interval: Annotated[Duration, Field(ge=0.0, le=3600.0)] = 10.0
    """Commits of a partition within this time are one row with their number; 0: each its own."""
    groups: Selection = Selection()
    """Which groups are recorded."""


class ExporterSpec(Strict):
    """Prometheus metrics of every group."""

    listen: Annotated[str, Field(pattern=r"^\S*:\d{1,5}$")] = "127.0.0.1:9308"
    """host:port of /metrics."""
    interval: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 15.0
    """Between two looks at the cluster."""
    partitions: bool = False
    """Lag per partition too: as many series as partitions times groups."""
    groups: Selection = Selection()
    """Which groups are exported."""


class UiSpec(Strict):
    """The page of `fleet ui`."""

    listen: Annotated[str, Field(pattern=r"^\S*:\d{1,5}$")] = "127.0.0.1:9309"
    """host:port of the page."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")] | None = None
    """Where people reach it (`https://fleet.example.com`): its name is answered then, and alerts
    link to it. None: at ui.listen, and alerts have no links to groups."""


class Alerts(Strict):
    """When Prometheus shall call somebody (`fleet render alert-rules`)."""

    max_lag: Annotated[Duration, Field(ge=1.0, le=2_592_000.0)] = 600.0
    """How old the oldest waiting record of a group may be that sets no max_lag."""
    stuck_after: Annotated[Duration, Field(ge=5.0, le=86_400.0)] = 600.0
    """For so long a group may be unsettled, or let records wait without one commit."""
    keep_firing_for: Annotated[Duration, Field(ge=0.0, le=86_400.0)] = 120.0
    """An alert lasts for so long after its cause is gone, so that a gap ends nothing."""
    runbooks: Annotated[str, Field(pattern=r"^(https?|file)://\S+$")] | None = None
    """Address of the runbooks, without the name of one. None: those that `fleet ui` serves, at
    ui.url, or at ui.listen where that is not set."""


class DagsterSpec(Strict):
    """What Dagster does by itself, as soon as it has loaded this file's fleets."""

    schedules: tuple[Literal["reconcile", "record_history"], ...] = ()
    """Schedules that run without anybody having turned them on in Dagster's page: `reconcile` plans
    every group in mode act once a minute and carries plans out, `record_history` brings the tables
    of the history up to date. Whoever turns one off in the page, turns it off."""


CONSUMER_HEARTBEAT = 5.0
"""Seconds: `group.consumer.heartbeat.interval.ms` as Kafka 4 ships it."""
CONSUMER_SESSION = 45.0
"""Seconds: `group.consumer.session.timeout.ms` as Kafka 4 ships it; a group config may raise it."""


class BatchSpec(Strict):
    """Bounds of one batch: records inline, records by ranges, waiting, running."""

    inline: Annotated[int, Field(ge=1, le=500_000)] = 50_000
    """Most records of a batch that the member reads itself."""
    ranges: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000
    """Most records of a batch whose offset ranges Spark's tasks read."""
    max_wait: Annotated[Duration, Field(ge=0.0, le=60.0)] = 0.2
    """From a small batch's end to the next; a stream's begins at once when Spark is idle."""
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
    """How records reach Spark: auto names ranges from three times batch.inline on."""
    max_poll_interval: Annotated[Duration, Field(ge=10.0, le=86400.0)] = 300.0
    """max.poll.interval.ms, the rebalance timeout of a classic group."""
    batch_timeout: Annotated[Duration, Field(ge=1.0, le=86400.0)] | None = None
    """Seconds one batch may take; default max_poll_interval - drain_timeout."""
    entrypoint_failure_timeout: Annotated[Duration, Field(ge=1.0, le=86400.0)] = 600.0
    """Seconds that the entrypoint may fail for all it is given before its worker ends."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """isolation.level of the reader."""
    on_truncated: Literal["stop", "skip"] = "stop"
    """What to do if records are gone or damaged before they were read; both name the loss."""
    metadata_refresh: Annotated[Duration, Field(ge=1.0, le=300.0)] = 30.0
    """How soon new partitions, new topics of a pattern and topics recreated are seen."""
    dead_letter_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """Where records go that fail alone; absent = their partition stops."""
    start_from: Literal["earliest", "latest"] = "earliest"
    """Where a topic begins that the group never committed; partitions added later: earliest.
    Commits that Kafka deleted count."""
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
    cooldown: Annotated[Duration, Field(ge=0.0, le=86_400.0)] = 120.0
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
    """How old its oldest waiting record may be; None: alerts.max_lag."""
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
