"""Models of fleet.yaml: every value has bounds, and an unknown key is an error.

Problem: people write the file by hand, and a typo must not start anything. Choice: pydantic models
forbid unknown keys. `fleet.config.load` reads the file, expands `${NAME}`, and names the file, the
line, the key and the nearest allowed key. The worker is a union tagged by `protocol`, since classic
and KIP-848 members take different settings [23]. `assignor` and `session_timeout` are errors under
`protocol: consumer`. Cost: secrets cannot stand in the file; its settings name environment
variables or files.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleet.config.topic_patterns import matches, topic_entry
from fleet.model import require_no_login

# How clients reach a cluster. These settings name environment variables or files, never a secret.


class Strict(BaseModel):
    """Forbids unknown keys and changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _variable(value: str) -> str:
    """Returns a variable's name; the ValueError for anything else does not repeat the value."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value):
        raise ValueError(
            "names an environment variable: write its name (letters, digits and _), not its value"
        )
    return value


def _file_path(value: str) -> str:
    """Returns a path; the ValueError for a file's content does not repeat it."""
    if "\n" in value or "-----BEGIN" in value:
        raise ValueError("names a file: write its path, not its content")
    return value


Variable = Annotated[str, AfterValidator(_variable)]
FilePath = Annotated[str, AfterValidator(_file_path)]


def _one_of(model: BaseModel, part: str, *keys: str) -> None:
    """Raises ValueError unless exactly one of these keys is set."""
    if len([key for key in keys if getattr(model, key)]) != 1:
        allowed = f"{', '.join(keys[:-1])} and {keys[-1]}"
        raise ValueError(f"needs exactly one of {allowed} for the {part}")


def _http_url(value: str) -> str:
    try:
        urlsplit(value).port  # noqa: B018 - raises for an address that no client can reach
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from error
    return value


_HttpUrl = Annotated[
    str,
    Field(pattern=r"^https?://(\[[^]/@\s]+\]|[^/@:\s]+)(:\d+)?(/\S*)?$"),
    AfterValidator(_http_url),
]
"""URL without a login."""


class Oidc(Strict):
    """Gets tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    endpoint: _HttpUrl
    """URL of the token endpoint. Use `http://` only on a network that you trust."""
    client_id: str | None = None
    """Client id, which is no secret. `${NAME}` is read as client_id_env."""
    client_id_env: Variable | None = None
    """Environment variable that holds the client id."""
    client_id_file: FilePath | None = None
    """File that holds the client id."""
    client_secret_env: Variable | None = None
    """Environment variable that holds the client secret."""
    client_secret_file: FilePath | None = None
    """File that holds the client secret."""
    header_urlencode: bool = True
    """URL-encode id and secret in the header (RFC 6749); false if the endpoint does not decode."""
    scope: str | None = None
    """Scope of the token request."""
    extensions: Mapping[str, Annotated[str, Field(pattern=r"^[^\x00-\x1f,]*$")]] = {}
    """SASL extensions (KIP-342), such as logicalCluster of Confluent Cloud."""
    ca_file: FilePath | None = None
    """PEM file of the CA that signed the endpoint's certificate; default: the system's CAs."""

    @model_validator(mode="after")
    def _one_source(self) -> "Oidc":
        _one_of(self, "client id", "client_id", "client_id_env", "client_id_file")
        _one_of(self, "client secret", "client_secret_env", "client_secret_file")
        for name in self.extensions:
            # RFC 7628: letters only; `auth` is the token's own.
            if not (name.isascii() and name.isalpha()) or name == "auth":
                raise ValueError(
                    f"{name!r} is not a SASL extension: use letters only; `auth` is reserved"
                )
        return self


class TokenProvider(Strict):
    """Gets tokens from a function that returns (token, expiry), such as Amazon MSK's signer."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    """`package.module:function`; every process that logs in imports it, Spark's tasks too."""
    arguments: Mapping[str, str] = {}
    """Keyword arguments of the function; no secrets."""


class Sasl(Strict):
    """Names where the SASL credentials are; only the username may be written itself."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """SASL mechanism (`sasl.mechanism`)."""
    username: str | None = None
    """Username, which is no secret. `${NAME}` is read as username_env."""
    username_env: Variable | None = None
    """Environment variable that holds the username."""
    username_file: FilePath | None = None
    """File that holds the username."""
    password_env: Variable | None = None
    """Environment variable that holds the password."""
    password_file: FilePath | None = None
    """File that holds the password."""
    oidc: Oidc | None = None
    """Client credentials for mechanism OAUTHBEARER."""
    provider: TokenProvider | None = None
    """Function that returns tokens for OAUTHBEARER, instead of `oidc`."""

    @model_validator(mode="after")
    def _one_source(self) -> "Sasl":
        # Settings that a manager wrote for its workers name every key (fleet.act.revisions).
        written = {name for name in self.model_fields_set if getattr(self, name) is not None}
        written -= {"mechanism"}
        if self.mechanism == "OAUTHBEARER":
            _one_of(self, "tokens", "oidc", "provider")
            if named := sorted(written - {"oidc", "provider"}):
                raise ValueError(f"mechanism OAUTHBEARER logs in with tokens; remove {named[0]}")
            return self
        if named := sorted(written & {"oidc", "provider"}):
            raise ValueError(
                f"{named[0]} needs mechanism OAUTHBEARER, but mechanism is {self.mechanism}"
            )
        _one_of(self, "username", "username", "username_env", "username_file")
        _one_of(self, "password", "password_env", "password_file")
        return self


class Tls(Strict):
    """Names the PEM files of a TLS connection."""

    ca_file: FilePath | None = None
    """PEM file of the CAs that signed the brokers' certificates; default: the system's CAs."""
    cert_file: FilePath | None = None
    """PEM file of the client certificate with its intermediate CAs, for mTLS."""
    key_file: FilePath | None = None
    """PEM file of the private key."""
    key_password_env: Variable | None = None
    """Environment variable that holds the key's password."""
    key_password_file: FilePath | None = None
    """File that holds the key's password."""

    @model_validator(mode="after")
    def _pair(self) -> "Tls":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs cert_file and key_file together, or neither")
        if self.key_password_env or self.key_password_file:
            _one_of(self, "key's password", "key_password_env", "key_password_file")
            if self.key_file is None:
                raise ValueError("has a password of a key, but no cert_file and key_file: add both")
        return self


class Security(Strict):
    """Sets how clients encrypt and log in."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Security protocol (`security.protocol`)."""
    sasl: Sasl | None = None
    """Login for SASL_PLAINTEXT and SASL_SSL."""
    tls: Tls = Tls()
    """Certificates for SSL and SASL_SSL."""

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
    """Returns `embedded`, or addresses as host:port,host:port."""
    for address in [] if value == "embedded" else value.split(","):
        host, _, port = address.strip().rpartition(":")
        if "/" in address:
            raise ValueError(
                "is not host:port: write broker-1:9092, without a scheme (kafka://) or a path"
            )
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(
                "is not host:port: write broker-1:9092 (port 1 to 65535), several separated by "
                "commas, or embedded"
            )
    return value


class ClusterSpec(Strict):
    """Describes the Kafka cluster."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "main"
    """Name of the cluster: part of every key that Fleet stores, and a label of metrics."""
    bootstrap_servers: Annotated[str, AfterValidator(_addresses)] = "embedded"
    """Addresses of brokers as host:port,host:port, or `embedded` for Fleet's own test broker."""
    security: Security = Security()
    """Encryption and login of clients."""


# Types of values that pydantic lacks: durations, patterns, addresses.


SPARK_SERVER: Final = "fleet-spark"
"""Connect server of a namespace for the fleets without Secrets; others add a hash of theirs."""
SPARK = r"^(shared|sc://.+|local\[(\d+|\*)\])$"
"""The shared server, a Connect server, or one JVM per worker."""
ANY_CHARACTER = re.DOTALL
"""Flags for patterns of group ids: Kafka allows line breaks in an id, and `.*` matches any id."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: Any) -> Any:
    """Converts `200ms`, `10s`, `5m`, `1h`, `2d` or a number to seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", value)
        if match is None:
            raise ValueError("is not a duration: write a number and ms, s, m, h or d, such as 30s")
        # 9 * 0.001 is 0.009000000000000001, which would stand in messages and hashes.
        return round(float(match[1]) * _UNITS[match[2] or "s"], 6)
    if isinstance(value, bool):
        raise ValueError("is not a duration: write a number and ms, s, m, h or d, such as 30s")  # noqa: TRY004
    return value


def regular_expression(value: Any) -> Any:
    """Returns a pattern that Python's `re` compiles."""
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
    return value


def without_token(value: str) -> str:
    """Returns a Spark address without a token, since files, settings and logs show it."""
    if re.search(r";\s*token=", value, re.IGNORECASE):
        raise ValueError(
            "holds a token, and fleet.yaml must not hold secrets: remove `token=` and set "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN in the environment (in pods: runtime.env_from). Add "
            "use_ssl=true, or use_ssl=false to send the token unencrypted"
        )
    return value


def table_location(value: str) -> str:
    """Returns a folder or an address that means the same for every user and pod."""
    if "\0" in value:
        raise ValueError("contains a NUL character: remove it")
    if value.removeprefix("file://").startswith("~"):
        raise ValueError(
            "begins with ~, which differs for each user: write the whole path, such as "
            "/srv/history, or an address such as s3://bucket/history"
        )
    return value


Duration = Annotated[float, BeforeValidator(seconds)]
PinTime = Annotated[Duration, Field(ge=1.0, le=2_592_000.0)]
Pattern = Annotated[str, BeforeValidator(regular_expression)]
SparkPlace = Annotated[str, Field(pattern=SPARK), AfterValidator(without_token)]


# All fleets of a file share one runtime, which keeps slots and leases. Settings of a pod are each
# fleet's own.


_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = "[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
DnsLabel = Annotated[str, Field(pattern=f"^{_LABEL}$", max_length=63)]
DnsSubdomain = Annotated[str, Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253)]
"""Name of a Secret, a Deployment and most other objects."""
LabelKey = Annotated[str, Field(pattern=rf"^({_LABEL}(\.{_LABEL})*/)?{_QUALIFIED}$")]
LabelValue = Annotated[str, Field(pattern=f"^({_QUALIFIED})?$")]

_SETTINGS: Final = "/etc/fleet"
_FLEET_PATHS: Final = (_SETTINGS, "/opt/fleet", "/tmp", "/var/lib/fleet")  # noqa: S108


def mount_path(value: str) -> str:
    """Returns a path where a pod can mount a Secret without hiding what Fleet needs."""
    path = PurePosixPath(value)
    if path.root != "/" or ".." in path.parts or ":" in value:
        raise ValueError("is not a path for a mount: write an absolute path without `..` and `:`")
    for own in _FLEET_PATHS:
        if PurePosixPath(own).is_relative_to(path):
            raise ValueError(f"would hide {own}, which Fleet needs: write another path")
    if path.is_relative_to(_SETTINGS):
        raise ValueError(f"lies below {_SETTINGS}, which is read-only: write another path")
    return str(path)


class LocalRuntimeSpec(Strict):
    """Runs workers as processes of this machine."""

    kind: Literal["local"] = "local"
    """Workers are processes of this machine."""
    lease: Annotated[Duration, Field(ge=2.0, le=600.0)] = 10.0
    """Time after which a silent owner loses its slot."""

    def place(self) -> str:
        """Names the place that keeps the slots."""
        return "local"


def check_heap(value: str) -> str:
    """Returns a JVM's heap in Spark's notation, if Spark starts with it."""
    if value.endswith("m") and int(value[:-1]) < _LEAST_HEAP:
        raise ValueError(f"{value} is less than {_LEAST_HEAP}m, with which Spark does not start")
    return value


Heap = Annotated[str, Field(pattern=r"^[1-9]\d{0,5}[mg]$"), AfterValidator(check_heap)]
_LEAST_HEAP: Final = 450
"""MiB: one and a half times what Spark reserves for itself."""


class SparkExecutors(Strict):
    """Sets up executors of a shared Spark server, which are pods of their own."""

    instances: Annotated[int, Field(ge=1, le=1000)]
    """Number of executors."""
    cores: Annotated[int, Field(ge=1, le=128)] = 1
    """Cores of an executor, each of which runs one task at a time."""
    cpu: Annotated[str, Field(pattern=r"^([1-9][0-9]*m?|[0-9]*\.[0-9]+)$")] | None = None
    """CPU that the pod of an executor requests, such as 500m; default: its cores."""
    memory: Heap = "2g"
    """Heap of an executor; its pod gets 40 % more, at least 384 MiB, for Python."""


class SparkConnect(Strict):
    """Sets up the Spark Connect server that fleets share (`worker.spark: shared`)."""

    image: str | None = None
    """Image of the server; default: the worker's image. A running server keeps its image."""
    memory: Heap = "2g"
    """Heap of the driver in Spark's notation, such as 2g."""
    master: str = "local[*]"
    """Spark master of the server."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """Requests and limits of the container; default: memory for the heap and its overhead."""
    executors: SparkExecutors | None = None
    """Executors as pods of their own; default: none, and tasks run in the server's pod."""

    @model_validator(mode="after")
    def _one_scheduler(self) -> "SparkConnect":
        if self.executors is not None and self.master != "local[*]":
            raise ValueError(
                f"master {self.master} and executors exclude each other: executors are pods of "
                "Spark's Kubernetes scheduler; remove one of them"
            )
        return self


class PodMetadata(Strict):
    """Adds labels and annotations to pods."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels to add to the pods."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations to add to the pods."""


class PodTemplate(Strict):
    """Patches the pods of workers."""

    metadata: PodMetadata = PodMetadata()
    """Labels and annotations to add; Fleet's own stay."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Patch of the PodSpec, merged as `kubectl patch` does; the worker's container is `worker`."""


class KubernetesRuntimeSpec(Strict):
    """Runs the workers of a fleet as pods of one Deployment."""

    kind: Literal["kubernetes"]
    """Workers are pods of one Deployment."""
    namespace: DnsLabel = "default"
    """Namespace of workers, slots and Spark servers."""
    context: str | None = None
    """Context of the kubeconfig; default: the pod's service account, else the current context."""
    image: str | None = None
    """Image of the workers; required if `worker` is declared."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """imagePullPolicy of the pods."""
    pull_secrets: tuple[DnsSubdomain, ...] = ()
    """imagePullSecrets of the pods."""
    deployment: DnsSubdomain | None = None
    """Deployment of external consumers (no `worker`), which Fleet observes and scales."""
    service_account: DnsSubdomain | None = None
    """ServiceAccount of the workers; default: Fleet makes one for each group, with its Role."""
    env_from: tuple[DnsSubdomain, ...] = ()
    """Secrets whose keys become environment variables, such as Kafka credentials."""
    mounts: dict[DnsSubdomain, Annotated[str, AfterValidator(mount_path)]] = Field(
        default_factory=dict
    )
    """Secrets to mount as files, each with its path; for certificates, for example."""
    ship_code: bool = True
    """Ship the code on worker.python_path in a ConfigMap; false refuses python_path, so that pods
    run only what their image holds."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """Requests and limits of a worker's container."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """nodeSelector of the pods."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations of the pods."""
    spread: bool = True
    """Spread the workers evenly over nodes and zones."""
    spread_required: bool = False
    """Leave a pod pending if it cannot be spread over nodes, instead of only preferring that."""
    max_unavailable: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Workers that may be evicted at once (PodDisruptionBudget)."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels to add to the pods."""
    annotations: dict[LabelKey, str] = Field(default_factory=dict)
    """Annotations to add to the pods."""
    pod_template: PodTemplate = PodTemplate()
    """Strategic merge patch over the workers' pods: affinity, priority, sidecars, volumes."""
    http_port: Annotated[int, Field(ge=1024, le=65535)] = 9464
    """Port of probes and metrics, named `http` in the pod."""
    spark: SparkConnect = SparkConnect()
    """Shared Spark Connect server of the fleets with the same Secrets."""
    lease: Annotated[Duration, Field(ge=2.0, le=600.0)] = 30.0
    """Time after which a silent owner loses its slot."""

    @model_validator(mode="after")
    def _secrets_fit(self) -> "KubernetesRuntimeSpec":
        if SPARK_SERVER in {*self.env_from, *self.mounts}:
            raise ValueError(
                f"takes the Secret {SPARK_SERVER}, which holds the tokens of all Spark servers of "
                "the namespace: workers get their own without it; remove it"
            )
        first: dict[str, str] = {}
        for secret, path in self.mounts.items():
            if first.setdefault(path, secret) != secret:
                raise ValueError(f"mounts the Secrets {first[path]} and {secret} both at {path}")
        return self

    def spark_server(self) -> str:
        """Names the Connect server of these fleets: one for each set of Secrets, since a job that
        may call a server can read its Secrets.
        """
        if not self.env_from and not self.mounts:
            return SPARK_SERVER
        taken = json.dumps([self.env_from, sorted(self.mounts.items())])
        return f"{SPARK_SERVER}-{hashlib.sha256(taken.encode()).hexdigest()[:16]}"

    def place(self) -> str:
        """Names the place that keeps the slots."""
        where = f" of context {self.context}" if self.context else ""
        return f"kubernetes namespace {self.namespace}{where}"


RuntimeSpec = Annotated[LocalRuntimeSpec | KubernetesRuntimeSpec, Field(discriminator="kind")]


# Parts of Fleet that observe all groups.


class Selection(Strict):
    """Selects groups whose whole id matches a pattern of `allow` and none of `deny`."""

    allow: tuple[Pattern, ...] = (".*",)
    """Regular expressions (whole id) of groups to include."""
    deny: tuple[Pattern, ...] = ()
    """Regular expressions (whole id) of groups to exclude."""

    def takes(self, group: str) -> bool:
        """Tells whether the selection includes a group."""
        if any(re.fullmatch(pattern, group, ANY_CHARACTER) for pattern in self.deny):
            return False
        return any(re.fullmatch(pattern, group, ANY_CHARACTER) for pattern in self.allow)


class History(Strict):
    """Sets where and for how long the history of groups is kept."""

    path: (
        Annotated[str, AfterValidator(require_no_login), AfterValidator(table_location)] | None
    ) = None
    """Path that Spark can write to, without a login; default: `history` in the state directory."""
    retention: Annotated[Duration, Field(ge=3600.0, le=315_360_000.0)] = 2_592_000.0
    """Time that rows are kept."""
    batch_interval: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 10.0
    """Time between two batches of `fleet history sync --follow`."""
    spark: SparkPlace = "shared"
    """Spark that reads the log: `shared` (needs Java here), sc://host:port, or local[n]."""
    batch_timeout: Annotated[Duration, Field(ge=10.0, le=86_400.0)] = 900.0
    """Longest time for one batch; Fleet then interrupts it and reads the records again."""
    commit_interval: Annotated[Duration, Field(ge=0.0, le=3600.0)] = 10.0
    """Time span in which the commits of a partition become one row; 0 keeps a row for each."""
    groups: Selection = Selection()
    """Groups to record."""


class UiSpec(Strict):
    """Sets the web page of `fleet ui`."""

    listen: Annotated[str, Field(pattern=r"^\S*:\d{1,5}$")] = "127.0.0.1:9309"
    """Address of the page as host:port."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")] | None = None
    """Public URL, such as https://fleet.example.com. Alerts link to it, and the page accepts its
    host name. Default: ui.listen, and alerts have no links."""


class Alerts(Strict):
    """Sets the limits of Prometheus alerts (`fleet render alert-rules`)."""

    max_lag: Annotated[Duration, Field(ge=1.0, le=2_592_000.0)] = 600.0
    """Greatest age of the oldest waiting record, for groups that set no max_lag."""
    stuck_after: Annotated[Duration, Field(ge=5.0, le=86_400.0)] = 600.0
    """Longest time that a group may rebalance, or not commit while records wait."""
    keep_firing_for: Annotated[Duration, Field(ge=0.0, le=86_400.0)] = 120.0
    """Time that an alert keeps firing after its cause ends, to bridge gaps in the data."""
    runbooks: Annotated[str, Field(pattern=r"^(https?|file)://\S+$")] | None = None
    """Base URL of the runbooks. Default: the runbooks that `fleet ui` serves, at ui.url or else
    at ui.listen."""


class DagsterSpec(Strict):
    """Sets what Dagster runs by itself."""

    schedules: tuple[Literal["reconcile", "record_history", "new_partitions"], ...] = ()
    """Schedules to start by default; you can stop each in Dagster's page. `reconcile` plans and
    applies every group in mode act once a minute. `record_history` updates the history tables.
    `new_partitions` is a sensor: it plans and applies a group once its topic has new partitions."""
    groups: Selection = Selection()
    """Groups that Dagster observes beside the declared ones."""
    watermark: Annotated[Duration, Field(ge=1.0, le=604_800.0)] = 3600.0
    """Time between two data versions of a group's asset. A version says up to which time the group
    has committed all records; assets that depend on the group can run when it changes."""
    grafana: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")] | None = None
    """Base URL of Grafana, such as https://grafana.example.com. The assets of groups link to the
    dashboard of `fleet render dashboard` there."""


CONSUMER_HEARTBEAT = 5.0
"""Seconds: `group.consumer.heartbeat.interval.ms` as Kafka 4 ships it."""
CONSUMER_SESSION = 45.0
"""Seconds: `group.consumer.session.timeout.ms` as Kafka 4 ships it; a group config may raise it."""


class BatchSpec(Strict):
    """Bounds the size and the time of one batch."""

    inline: Annotated[int, Field(ge=1, le=500_000)] = 50_000
    """Most records of a batch in reading mode inline, which the worker itself reads."""
    ranges: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000
    """Most records of a batch in reading mode ranges, which Spark tasks read."""
    max_wait: Annotated[Duration, Field(ge=0.0, le=60.0)] = 0.2
    """Longest wait between two small batches; if Spark is idle, the next batch starts at once."""
    max_seconds: Annotated[Duration, Field(ge=0.1, le=3600.0)] = 10.0
    """Target time of a batch. After a longer one, the next batch is smaller, unless a busy Spark
    takes as long for smaller batches."""
    memory: Annotated[int, Field(ge=0, le=1 << 20)] = 256
    """Most MiB in /dev/shm for passing records to a Spark on this machine; 0 disables it."""


_COMMAND_KEYS: Final = frozenset(
    {"command", "warm", "env", "membership", "protocol", "assignor", "session_timeout"}
    | {"heartbeat_interval", "max_poll_interval", "batch_timeout", "http"}
)
"""Keys that a worker with `command` takes."""
_COMMAND_DEFAULTS: Final = {"assignor": "range", "session_timeout": 45, "heartbeat_interval": 3}
"""What Kafka's own clients do unless they are told otherwise."""


class _WorkerBase(Strict):
    entrypoint: Annotated[str, Field(pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*)?$")] = ""
    """Job as `package.module:function`; the worker calls it with (df, context)."""
    command: tuple[str, ...] = ()
    """Program and arguments of a consumer in any language, instead of entrypoint. `{instance_id}`
    stands for its group.instance.id, which it also finds in GROUP_INSTANCE_ID."""
    warm: bool = False
    """Start the command before its worker has a slot. It subscribes once the file that
    FLEET_INSTANCE_FILE names holds its group.instance.id."""
    python_path: tuple[str, ...] = ()
    """Folders to add to the worker's module path. A revision holds a copy of the entrypoint and of
    what it imports from these folders."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the worker; part of the revision. The worker itself expands
    `${NAME}`, so that a revision holds no secret."""
    membership: Literal["static", "dynamic"] = "static"
    """Membership; static gives each slot a group.instance.id, so that a roll costs 0 rebalances."""
    batch: BatchSpec = BatchSpec()
    """Bounds of one batch: records, time, memory."""
    reading: Literal["auto", "inline", "ranges"] = "auto"
    """Reading mode; auto uses ranges from three times batch.inline waiting records on."""
    max_poll_interval: Annotated[Duration, Field(ge=10.0, le=86400.0)] = 300.0
    """Rebalance timeout of a classic group (`max.poll.interval.ms`)."""
    batch_timeout: Annotated[Duration, Field(ge=1.0, le=86400.0)] | None = None
    """Longest time for one batch; default: max_poll_interval - drain_timeout."""
    entrypoint_failure_timeout: Annotated[Duration, Field(ge=1.0, le=86400.0)] = 600.0
    """Time that the entrypoint may fail for every record before its worker stops."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Isolation level of the reader (`isolation.level`)."""
    on_truncated: Literal["stop", "skip"] = "stop"
    """Action if Kafka deleted or damaged records before they were read; both report the loss."""
    metadata_refresh: Annotated[Duration, Field(ge=1.0, le=300.0)] = 30.0
    """Time until a worker finds new partitions, recreated topics and new topics of a pattern."""
    dead_letter_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """Topic for poison records; default: none, and a poison record stops its partition."""
    start_from: Literal["earliest", "latest"] = "earliest"
    """First offset in a topic without any commit of the group; partitions added later start at
    earliest. Commits that Kafka deleted count as commits."""
    spark: SparkPlace = "shared"
    """Spark of the workers: `shared` (the server of this state directory, or of the namespace's
    fleets with the same Secrets), sc://host:port, or local[n]."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest log level of the job and its libraries in the worker's log."""
    spark_ui: bool = False
    """Serve Spark's web UI on this machine, without a login; `fleet status` shows its address.
    The shared server applies a change at its next start; sc:// ignores it."""
    http: str = "127.0.0.1:0"
    """Address of health, readiness and metrics as host:port; port 0 takes a free port."""

    @property
    def shares_spark(self) -> bool:
        """Tells whether its workers use the shared Spark server."""
        return self.spark == "shared" and not self.command

    @model_validator(mode="after")
    def _job_or_command(self) -> "_WorkerBase":
        if bool(self.entrypoint) == bool(self.command):
            raise ValueError(
                "needs either entrypoint (package.module:function) or command ([program, …])"
            )
        if not self.command:
            if self.warm:
                raise ValueError("warm is for workers with command: remove it")
            return self
        fields = type(self).model_fields
        idle = [
            key for key, value in self if key not in _COMMAND_KEYS and value != fields[key].default
        ]
        idle += ["membership: dynamic"] if self.membership == "dynamic" else []
        if idle:
            raise ValueError(f"a worker with command takes no {', '.join(sorted(idle))}: remove it")
        named = [word for word in self.command if "{instance_id}" in word]
        if self.warm and named:
            raise ValueError(
                f"command has {named[0]}, but a warm program starts before its slot is known: let "
                "it read FLEET_INSTANCE_FILE, or remove warm"
            )
        return self


class ClassicWorker(_WorkerBase):
    """Sets a member of the classic protocol (JoinGroup/SyncGroup)."""

    protocol: Literal["classic"] = "classic"
    """Rebalance protocol with JoinGroup and SyncGroup."""
    assignor: Literal["range", "cooperative-sticky"] = "cooperative-sticky"
    """Assignor (`partition.assignment.strategy`)."""
    session_timeout: Annotated[Duration, Field(ge=6.0, le=1800.0)] = 180.0
    """Time after which the coordinator removes a silent member (`session.timeout.ms`)."""
    heartbeat_interval: Annotated[Duration, Field(ge=0.5, le=60.0)] = 0.5
    """Time between two heartbeats (`heartbeat.interval.ms`), which report rebalances; at most a
    third of session_timeout."""

    @model_validator(mode="before")
    @classmethod
    def _as_clients_do(cls, told: Any) -> Any:
        has_command = isinstance(told, dict) and told.get("command")
        return {**_COMMAND_DEFAULTS, **told} if has_command else told


class ConsumerWorker(_WorkerBase):
    """Sets a KIP-848 member; the group's config on the brokers sets its session timeout."""

    protocol: Literal["consumer"]
    """Rebalance protocol of KIP-848, in which the coordinator assigns."""


class Replicas(Strict):
    """Bounds the number of slots and sets the number of standbys."""

    min: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Lowest number of slots."""
    max: Annotated[int, Field(ge=1, le=10_000)] = 12
    """Highest number of slots; the number of partitions also limits it."""
    standby: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of standbys: warm workers without a slot."""

    @model_validator(mode="after")
    def _ordered(self) -> "Replicas":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        return self


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ValueError, KeyError, OSError) as error:
        if available_timezones():  # a worker's image has none, and asks for none
            raise ValueError("is no time zone: write one such as Europe/Berlin or UTC") from error
    return value


def _clock_hours(value: str) -> str:
    hour, minute = "([01][0-9]|2[0-3])", "[0-5][0-9]"
    if not re.fullmatch(f"{hour}:{minute}-({hour}:{minute}|24:00)", value):
        raise ValueError("is not HH:MM-HH:MM: write hours such as 08:00-20:00 or 00:00-24:00")
    begin, _, end = value.partition("-")
    if begin == end:
        raise ValueError("begins when it ends: for the whole day, write 00:00-24:00")
    return value


Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = get_args(Day)


class Hours(Strict):
    """Describes hours of the day on days of the week."""

    hours: Annotated[str, AfterValidator(_clock_hours)]
    """Begin and end as HH:MM-HH:MM, such as 08:00-20:00; 22:00-06:00 ends on the next day."""
    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    """Days on which the hours begin; default: every day."""


class Floor(Hours):
    """Sets a lowest number of slots for some hours."""

    min: Annotated[int, Field(ge=1, le=10_000)]
    """Lowest number of slots in these hours, if it is above replicas.min."""


class _ScalingBase(Strict):
    up_after: Annotated[Duration, Field(ge=0.0, le=86400.0)] = 0.0
    """Time that the policy must want more slots before Fleet adds them."""
    down_after: Annotated[Duration, Field(ge=0.0, le=86400.0)] = 300.0
    """Time that the policy must want fewer slots, at every check, before Fleet removes them."""
    max_step: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Most slots that one plan adds or removes; default: no limit."""
    floors: tuple[Floor, ...] = ()
    """Lowest numbers of slots by the clock; the highest that applies counts."""
    freeze: tuple[Hours, ...] = ()
    """Hours in which the policy changes nothing."""
    timezone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    """Time zone of floors and freeze."""
    changes_per_hour: Annotated[int, Field(ge=1, le=60)] | None = None
    """Changes of the group in the last hour, by any actor, after which the policy waits; default:
    no limit."""


class FixedScaling(_ScalingBase):
    """Wants a fixed number of slots."""

    policy: Literal["fixed"]
    """A fixed number of slots."""
    workers: Annotated[int, Field(ge=0, le=10_000)]
    """Number of slots."""


class PartitionsScaling(_ScalingBase):
    """Wants slots in proportion to partitions."""

    policy: Literal["partitions"] = "partitions"
    """Slots in proportion to partitions."""
    per_worker: Annotated[int, Field(ge=1, le=100_000)] = 4
    """Partitions per worker."""


class LagScaling(_ScalingBase):
    """Wants one slot per `records_per_worker` waiting records."""

    policy: Literal["lag"]
    """Slots in proportion to waiting records."""
    records_per_worker: Annotated[int, Field(ge=1)] = 10_000
    """Waiting records per worker."""


class _RateScaling(_ScalingBase):
    records_per_second: Annotated[float, Field(gt=0)] | None = None
    """Records per second that a busy worker reads; default: learnt from the workers' reports."""
    idle: Annotated[Duration, Field(ge=0.0, le=604800.0)] = 6600.0
    """Idle time of all surplus slots together after which a rebalance to remove them pays."""


class PackedScaling(_RateScaling):
    """Wants the fewest slots that read all partitions, and says what a packing would save."""

    policy: Literal["packed"]
    """Slots by arrival and capacity, beside a packing of partitions by their rates."""


class DrainTimeScaling(_RateScaling):
    """Wants as many slots as keep the oldest waiting record younger than `target`."""

    policy: Literal["drain_time"]
    """Slots by arrival, backlog and capacity, under the group's assignor."""
    target: Annotated[Duration, Field(ge=5.0, le=86400.0)] = 60.0
    """Greatest age of the oldest waiting record."""
    starts_in: Annotated[Duration, Field(ge=0.0, le=3600.0)] = 30.0
    """Time until a new worker reads, with a new node if it needs one."""


class ExternalScaling(_ScalingBase):
    """Wants the number of slots that another program serves by HTTP."""

    policy: Literal["external"]
    """The number of slots that another program serves by HTTP."""
    url: _HttpUrl
    """URL of the number. Use `http://` only on a network that you trust."""
    value_location: str = ""
    """Place of the number in a JSON answer: keys and positions joined by dots, such as
    data.0.wanted. Default: the whole answer is the number."""
    query: str = ""
    """PromQL query whose only series is the number; `url` is then the address of Prometheus."""
    authorization_env: Variable | None = None
    """Environment variable that holds the Authorization header, such as `Basic dXNlcjpwdw==`, or a
    bearer token alone."""
    authorization_file: FilePath | None = None
    """File that holds the same."""
    ca_file: FilePath | None = None
    """PEM file of the CA that signed the server's certificate; default: the system's CAs."""

    @model_validator(mode="after")
    def _one_source(self) -> "ExternalScaling":
        if self.query and self.value_location:
            raise ValueError("has query and value_location: remove value_location")
        if self.authorization_env and self.authorization_file:
            raise ValueError("has authorization_env and authorization_file: remove one")
        return self


class Rollout(Strict):
    """Sets how a new revision replaces the old one."""

    max_parallel: Annotated[int, Field(ge=1, le=1000)] = 1
    """Slots that Fleet hands over at the same time, after the canary."""
    drain_timeout: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 30.0
    """Time for a worker to finish its batch, commit and close."""
    bake: Annotated[Duration, Field(ge=0.0, le=86400.0)] = 30.0
    """Time after which a canary without data and without errors passes. On Kubernetes also the time
    for which a new pod must be ready before an old one goes."""
    canary_batches: Annotated[int, Field(ge=1, le=1000)] = 3
    """Committed batches after which the canary passes."""
    warm_timeout: Annotated[Duration, Field(ge=5.0, le=3600.0)] = 120.0
    """Time for new standbys to become warm; on Kubernetes, from when their pods have nodes."""
    node_timeout: Annotated[Duration, Field(ge=5.0, le=3600.0)] = 300.0
    """Time for pods to get nodes, such as new ones of a cluster autoscaler."""


class StormSpec(Strict):
    """Bounds rebalances and moved partitions per window; more of either is a storm."""

    rebalances: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Most rebalances in a window."""
    window: Annotated[Duration, Field(ge=10.0, le=604_800.0)] = 600.0
    """Length of the window."""
    moved: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Most partitions that change their owner in a window; default: no limit."""
    cooldown: Annotated[Duration, Field(ge=0.0, le=86_400.0)] = 120.0
    """Time that the window must hold at most half of the budget before a storm ends."""


class CreateTopic(Strict):
    """Sets how Fleet creates missing topics of the group."""

    partitions: Annotated[int, Field(ge=1, le=100_000)] = 12
    """Partitions of a created topic."""
    replication: Annotated[int, Field(ge=1, le=10)] = 1
    """Replication factor of a created topic."""


TableKey = Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)*$")]


class Writes(Strict):
    """Names where the jobs of a group write, for lineage in Dagster."""

    tables: tuple[TableKey, ...] = ()
    """Tables as Dagster's asset keys, such as lake/orders."""
    delta: dict[TableKey, Annotated[str, Field(pattern=r"^\S+$")]] = Field(default_factory=dict)
    """Tables of `write_delta` with their folders, such as {lake/orders: "s3://lake/orders"}.
    Dagster's code server reads their versions."""
    iceberg: dict[TableKey, Annotated[str, Field(pattern=r"^[\w-]+:[\w-]+(\.[\w-]+)+$")]] = Field(
        default_factory=dict
    )
    """Tables of `write_iceberg` with their catalogs and names, such as {lake/orders:
    "prod:shop.orders"}. Dagster's code server reads their snapshots."""
    topics: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")], ...] = ()
    """Topics. Fleet adds worker.dead_letter_topic itself."""

    def all_tables(self) -> tuple[str, ...]:
        """Returns the keys of all tables."""
        return tuple(dict.fromkeys((*self.tables, *self.delta, *self.iceberg)))


class ScaleAt(Strict):
    """Scales a group at times of day, by a schedule of Dagster."""

    cron: Annotated[str, Field(pattern=r"^\S+( \S+){4}$")]
    """Time as five fields of cron, such as 0 7 * * 1-5."""
    timezone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    """Time zone of cron."""
    wanted: Annotated[int, Field(ge=0, le=10_000)]
    """Slots from then on."""
    pin: PinTime = 3600.0
    """Time for which the policy keeps that number."""


Topic = Annotated[str, BeforeValidator(topic_entry)]
Worker = Annotated[ClassicWorker | ConsumerWorker, Field(discriminator="protocol")]
Scaling = Annotated[
    FixedScaling
    | PartitionsScaling
    | LagScaling
    | DrainTimeScaling
    | PackedScaling
    | ExternalScaling,
    Field(discriminator="policy"),
]


def _check_floors(scaling: Scaling, replicas: Replicas) -> None:
    for floor in scaling.floors:
        if floor.min > replicas.max:
            raise ValueError(
                f"scaling.floors wants {floor.min} slots ({floor.hours}), but replicas.max is "
                f"{replicas.max}: raise it, or lower the floor"
            )


class WantedMembersSpec(Strict):
    """Sets the policy that sizes some groups for KEDA or an HPA."""

    groups: Selection = Selection()
    """Groups to size."""
    scaling: Scaling
    """Policy for the number of members, with the keys of `fleets[].scaling`."""
    replicas: Replicas = Replicas()
    """Bounds of the number of members."""

    @model_validator(mode="after")
    def _floors_fit(self) -> "WantedMembersSpec":
        _check_floors(self.scaling, self.replicas)
        return self


class ExporterSpec(Strict):
    """Sets the Prometheus exporter of all groups."""

    listen: Annotated[str, Field(pattern=r"^\S*:\d{1,5}$")] = "127.0.0.1:9308"
    """Address of /metrics as host:port."""
    interval: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 15.0
    """Time between two refreshes of the exporter."""
    partitions: bool = False
    """Export lag per partition too; this adds one series per group and partition."""
    groups: Selection = Selection()
    """Groups to export."""
    wanted_members: tuple[WantedMembersSpec, ...] = ()
    """Policies for groups that declare no `scaling`; the first whose `groups` match applies. The
    exporter serves the number that it wants, for KEDA or an HPA. Fleet does not act on it."""


class GroupSpec(Strict):
    """Describes one fleet: a consumer group and its workers."""

    group: Annotated[str, Field(min_length=1, max_length=249)]
    """Consumer group (`group.id`)."""
    mode: Literal["observe", "plan", "act"] | None = None
    """Mode of this group; default: the file's mode."""
    owner: str = ""
    """Team that owns the group; a label of metrics and alerts."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for `--select` and Dagster; metrics and alerts carry only `owner`."""
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)]
    """Topics: names, or regular expressions that begin with ^ and end with $ or .*"""
    writes: Writes = Writes()
    """Places where the group's jobs write; Dagster shows them behind the group."""
    create: CreateTopic | None = None
    """Settings for creating missing topics; default: Fleet waits for them."""
    worker: Worker | None = None
    """Worker of the fleet; default: none, and the group is external and only observed."""
    replicas: Replicas = Replicas()
    """Bounds of the number of slots, and the number of standbys."""
    scaling: Scaling = PartitionsScaling()
    """Policy for the number of slots."""
    scale_at: tuple[ScaleAt, ...] = ()
    """Numbers of slots by the clock, each a schedule of Dagster."""
    rollout: Rollout = Rollout()
    """Way in which a new revision replaces the old one."""
    storm: StormSpec = StormSpec()
    """Rebalance budget of this group; more is a storm."""
    max_lag: Annotated[Duration, Field(ge=1.0, le=2_592_000.0)] | None = None
    """Greatest age of its oldest waiting record; default: alerts.max_lag."""
    runtime: RuntimeSpec = LocalRuntimeSpec()
    """Runtime of the workers; one place for all fleets of a file."""

    @property
    def is_changeable(self) -> bool:
        """Tells whether Fleet can change the group: its workers, or a Deployment to scale."""
        adopts = isinstance(self.runtime, KubernetesRuntimeSpec) and self.runtime.deployment
        return self.worker is not None or bool(adopts)

    @model_validator(mode="after")
    def _dead_letters_end(self) -> "GroupSpec":
        topic = self.worker.dead_letter_topic if self.worker else None
        for entry in self.topics:
            if topic is not None and matches(entry, topic):
                raise ValueError(
                    f"worker.dead_letter_topic {topic} is a topic of this group itself (topics: "
                    f"{entry}), so a poison record would come back for ever: name another topic"
                )
        return self

    @model_validator(mode="after")
    def _code_fits(self) -> "GroupSpec":
        runtime, worker = self.runtime, self.worker
        if worker is not None and worker.python_path and not getattr(runtime, "ship_code", True):
            raise ValueError(
                f"worker.python_path names {', '.join(worker.python_path)}, but runtime.ship_code "
                "is false: build the code into runtime.image and remove python_path"
            )
        return self

    @model_validator(mode="after")
    def _floors_fit(self) -> "GroupSpec":
        _check_floors(self.scaling, self.replicas)
        return self

    @property
    def batch_limit(self) -> float:
        """Returns the longest time for one batch in seconds; 0 without workers."""
        if self.worker is None:
            return 0.0
        longest = self.worker.max_poll_interval - self.rollout.drain_timeout
        return self.worker.batch_timeout or longest

    @property
    def canary_limit(self) -> float:
        """Returns the longest time for a canary in seconds: `bake`, then its batches."""
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
                f"groups, {CONSUMER_SESSION:g}s by Kafka's default, else a worker's death costs a "
                "rebalance"
            )
        if isinstance(worker, ClassicWorker):
            if lease + 5 >= worker.session_timeout:
                raise ValueError(
                    f"runtime.lease {lease:g}s + 5s must be below worker.session_timeout "
                    f"{worker.session_timeout:g}s, else a worker's death costs a rebalance"
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
    """Describes the whole file: one cluster and its fleets."""

    cluster: ClusterSpec = ClusterSpec()
    """Kafka cluster of all fleets in the file."""
    mode: Literal["observe", "plan", "act"] | None = None
    """Mode of all groups; default: plan, but act for the embedded cluster."""
    max_groups_in_change: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Most groups that change at the same time, by any actor; default: no limit."""
    storm: StormSpec = StormSpec()
    """Rebalance budget of groups that no fleet declares."""
    history: History = History()
    """Recording of every group's history."""
    exporter: ExporterSpec = ExporterSpec()
    """Prometheus exporter of all groups."""
    ui: UiSpec = UiSpec()
    """Web page of `fleet ui`."""
    alerts: Alerts = Alerts()
    """Limits of Prometheus alerts."""
    dagster: DagsterSpec = DagsterSpec()
    """Schedules that Dagster starts by default."""
    fleets: tuple[GroupSpec, ...] = ()
    """Declared consumer groups."""

    @model_validator(mode="after")
    def _one_fleet_per_group(self) -> "FleetSpec":
        seen: set[str] = set()
        for fleet in self.fleets:
            if fleet.group in seen:
                raise ValueError(f"group {fleet.group!r} is declared twice: remove one")
            seen.add(fleet.group)
        return self

    @model_validator(mode="after")
    def _one_runtime(self) -> "FleetSpec":
        places: dict[str, str] = {}
        for fleet in self.fleets:
            places.setdefault(fleet.runtime.place(), fleet.group)
        if len(places) > 1:
            listed = ", ".join(f"{where} (group {group})" for where, group in places.items())
            raise ValueError(
                f"all fleets of one file share one runtime, but this one names several: {listed}; "
                "write one file for each runtime"
            )
        return self

    @property
    def runtime(self) -> RuntimeSpec:
        """Returns the runtime that all fleets of the file share."""
        return self.fleets[0].runtime if self.fleets else LocalRuntimeSpec()

    def mode_of(self, group: GroupSpec) -> Literal["observe", "plan", "act"]:
        """Returns a group's mode: its own, the file's, or the default."""
        if not group.is_changeable:
            return "observe"
        default: Literal["plan", "act"] = (
            "act" if self.cluster.bootstrap_servers == "embedded" else "plan"
        )
        return group.mode or self.mode or default

    def max_lag_of(self, group: GroupSpec | None) -> float:
        """Returns the greatest age of a group's oldest waiting record; None: an undeclared group.

        Alerts and Dagster's checks use this one limit.
        """
        own = None if group is None else group.max_lag
        return self.alerts.max_lag if own is None else own

    def fleet(self, group: str) -> GroupSpec | None:
        """Returns the declared fleet of a group; None if there is none."""
        return next((f for f in self.fleets if f.group == group), None)
