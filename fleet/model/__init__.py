"""Values that every package uses.

All are frozen, slotted and keyword-only; a change is `dataclasses.replace`. Offsets are Kafka's: a
committed offset names the next record to read. Times are wall-clock seconds.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

# A finding of `fleet doctor`: one fact, its severity, and what to do.


class Severity(StrEnum):
    """How bad a finding is. Only FAIL changes the exit code."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report of `fleet doctor`."""

    check: str
    level: Severity
    found: str
    remedy: str = ""
    """What to do; empty if nothing is to be done."""


def ok(check: str, found: str) -> Finding:
    """Creates a finding without a problem."""
    return Finding(check, Severity.OK, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    """Creates a finding for something that works less well, or not yet."""
    return Finding(check, Severity.WARN, found, remedy)


def fail(check: str, found: str, remedy: str = "") -> Finding:
    """Creates a finding for something that does not work."""
    return Finding(check, Severity.FAIL, found, remedy)


# Broker settings that limit a group.


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """The narrowest limits of the brokers that answered; None if not known.

    Times in seconds: `group.initial.rebalance.delay.ms`, `group.min.session.timeout.ms` and
    `group.max.session.timeout.ms`. Members: `group.max.size`, `group.consumer.max.size`.
    """

    initial_delay: float | None = None
    least_session: float | None = None
    longest_session: float | None = None
    classic_members: int | None = None
    consumer_members: int | None = None


UNKNOWN: Final = BrokerLimits()


# An object store's address holds no login, because files, messages, JSON and Delta logs show it.
# pyarrow accepts `s3://KEY:SECRET@bucket`; a secret belongs in the environment.


_BUCKETS: Final = frozenset({"s3", "s3a", "s3n", "gs", "gcs"})
"""URL schemes whose first part is only a bucket name. abfss:// has container@account there."""
_SECRET: Final = re.compile(r"[?&](client_secret|secret_key|sig)=", re.IGNORECASE)


def require_no_login(address: str) -> str:
    """Returns the address.

    Raises ValueError if it holds a key or a password; the error does not repeat the address.
    """
    scheme, mark, rest = address.partition("://")
    name = rest.partition("/")[0]
    marks = "@:" if scheme in _BUCKETS else ""
    held = ":" in name.rpartition("@")[0] or any(each in name for each in marks)
    if mark and (held or _SECRET.search(rest)):
        raise ValueError(
            f"holds a login, and an address must not hold a secret: write {scheme}:// and the "
            "location only, and set the login in the store's environment variables "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://)"
        )
    return address


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Topics that Kafka keeps for itself. A subscribed pattern may match them too."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic, with the topic's name in Kafka."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LagCase(StrEnum):
    """Why a lag has its value. Only OK, BELOW_START, NOTHING and HELD have a figure."""

    OK = "ok"
    NEVER_COMMITTED = "never committed"
    BELOW_START = "committed below log start"
    BEYOND_END = "committed beyond log end"
    TOPIC_DELETED = "topic deleted"
    LEFT = "left"
    """The group is settled, and no member subscribes to the topic any more."""
    UNKNOWN = "unknown"
    NOTHING = "nothing readable"
    """Only aborted transactions, control records and gaps of compaction are behind the position."""
    HELD = "held by a transaction"
    """The next record is behind the first one of a transaction that is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition as one group has it.

    lag is in records and never negative; None if it is not known. lag_seconds is the age of the
    committed position, interpolated over samples of the end offset; None if not known.
    """

    tp: TopicPartition
    committed: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    lag_seconds: float | None
    case: LagCase
    owner: str | None = None
    """member id of the owner; None if no member owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as DescribeGroups or ConsumerGroupDescribe reports it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class GroupState(StrEnum):
    """Kafka's group states.

    REBALANCING stands for Assigning and Reconciling of KIP-848 and for NotReady of Streams groups.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    REBALANCING = "Rebalancing"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """One group at one moment.

    `exists` is False if no such group exists, which only ListGroups reports (KIP-88 cannot).
    """

    group: str
    exists: bool
    state: GroupState
    type: str
    """classic | consumer | share | streams | another protocol of a classic group | unknown."""
    assignor: str | None
    members: tuple[Member, ...]
    partitions: tuple[PartitionState, ...]

    @property
    def lag(self) -> int | None:
        """Records that wait in all partitions whose lag is known; None if none is known."""
        known = [p.lag for p in self.partitions if p.lag is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """Age in seconds of the oldest waiting record; 0 if none waits, None if not known."""
        measured = [p for p in self.partitions if p.lag is not None]
        waiting = [p.lag_seconds for p in measured if p.lag]
        known = [age for age in waiting if age is not None]
        return max(known, default=None) if waiting else (0.0 if measured else None)


# --- what a change costs and did cost ------------------------------------------------------


class StepKind(StrEnum):
    """The kind of a step. A step is one membership change; a roll changes no membership."""

    OPEN = "open"
    """slots opened together: k joins, one rebalance."""
    LEAVE = "leave"
    """k slots drained, closed together, one batched leave."""
    ROLL = "roll"
    """slots handed over one by one to workers of another revision."""
    REJOIN = "rejoin"
    """one forced rebalance, after a roll that changed the subscription."""
    STOP_ALL = "stop all"
    """every slot drained and left, because the next members cannot share a generation."""
    WARM = "warm"
    """only standbys come or go; no membership change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCost:
    """What a step is expected to cost, counted in coordinator records.

    The bounds are the guarantee that a receipt is checked against. The expected values and all
    times come from the coordinator's model (`fleet.decide.expected_costs`). None = not known.
    """

    rebalances_min: int
    rebalances_max: int
    moved_min: int | None = None
    moved_max: int | None = None
    """Partitions that change owner; both None if not known."""
    downtime_s: float | None = None
    """Median seconds between two commits of a partition beyond the usual gap, as receipts record
    it, over the partitions with any downtime. 0: none has any; None = not known."""
    note: str = ""
    rebalances_expected: int | None = None
    moved_expected: int | None = None
    downtime_p95_s: float | None = None
    settled_s: float | None = None
    """Seconds from the first member's move until the last partition has its owner."""
    backlog: int | None = None
    """Records that wait by then, by this group's measured rates."""

    def __str__(self) -> str:
        if self.rebalances_min == self.rebalances_max:
            return str(self.rebalances_max)
        return f"{self.rebalances_min}-{self.rebalances_max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan. `slots` are the slot numbers that it changes, in order."""

    kind: StepKind
    slots: tuple[int, ...]
    revision: str
    """The revision that holds these slots afterwards (WARM, OPEN, ROLL)."""
    sentence: str
    """What happens, in one sentence for people."""
    expected_cost: ExpectedCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What one change of a plan would cost if done another way; figures as in ExpectedCost."""

    step: int
    """The change's first step in the plan."""
    way: str
    starts_in_s: float = 0.0
    rebalances: int
    moved: int
    downtime_s: float | None
    downtime_p95_s: float | None
    settled_s: float
    """From its own start."""
    backlog: int | None
    keeps_limits: bool
    """Whether it keeps the storm budget and, for a roll, rollout.max_parallel."""
    exceeded: tuple[str, ...] = ()
    """The keys of fleet.yaml whose limits it exceeds."""
    cheapest: bool
    """Whether it is the cheapest of those that keep the limits."""
    chosen: bool
    """Whether the plan does it this way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change with its expected cost, or the reasons why it is refused."""

    id: str
    cluster: str
    group: str
    created_at: float
    snapshot_at: float
    wanted: int
    """Number of slots after the plan."""
    revision: str
    steps: tuple[Step, ...]
    refusals: tuple[str, ...] = ()
    """Why nothing may be done now, each a sentence. A plan with a refusal is not performed."""
    notes: tuple[str, ...] = ()
    """What an operator should know: guarantees that cannot be kept, caps, partitions with most lag.
    """
    alternatives: tuple[Alternative, ...] = ()
    """Other ways to do each change of several members, with the plan's own way."""

    @property
    def empty(self) -> bool:
        """Whether the plan has nothing to do."""
        return not self.steps


class ReceiptResult(StrEnum):
    """How the recorded rebalances compare with the expected cost."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNVERIFIED = "unverified"
    """The coordinator's records cannot be read (managed Kafka)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one step was expected to cost and what the coordinator recorded.

    `rebalances` and `external_rebalances` are completed generations (classic) or assignment epochs.
    `aborted` are rounds that never completed, which are gaps in the generation numbers.
    """

    plan_id: str
    group: str
    step: int
    kind: StepKind
    expected_cost: ExpectedCost
    rebalances: int
    external_rebalances: int
    aborted: int
    moved: int
    longest_downtime_s: float | None
    settled_s: float | None = None
    """Seconds from the first member's move to the last record of this step; None if not known."""
    from_generation: int | None
    to_generation: int | None
    started_at: float
    seconds: float
    result: ReceiptResult
    sentences: tuple[str, ...] = ()
    """Named causes of external rebalances, unclean drains, the join spread, and so on."""
