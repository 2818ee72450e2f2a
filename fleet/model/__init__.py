"""The values that every room speaks.

All are frozen, slotted and keyword-only; a change is `dataclasses.replace`. Offsets are
Kafka's: a committed offset names the next record to read. Times are wall-clock seconds.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

# What an examination finds: one fact, how bad it is, what to do.


class Severity(StrEnum):
    """How bad a finding is; only FAIL changes the exit code."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's answer."""

    check: str
    level: Severity
    found: str
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    """Something works less well, or not yet."""
    return Finding(check, Severity.WARN, found, remedy)


def fail(check: str, found: str, remedy: str = "") -> Finding:
    """Something does not work."""
    return Finding(check, Severity.FAIL, found, remedy)


# What brokers are set to, of what bounds a group.


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Of the brokers that were asked, the narrowest; None = not known.

    Times in seconds: `group.initial.rebalance.delay.ms`, `group.min.session.timeout.ms` and
    `group.max.session.timeout.ms`. Members: `group.max.size`, `group.consumer.max.size`.
    """

    initial_delay: float | None = None
    least_session: float | None = None
    longest_session: float | None = None
    classic_members: int | None = None
    consumer_members: int | None = None


UNKNOWN: Final = BrokerLimits()


# Addresses of object stores hold no login: they stand in files, messages, JSON and Delta logs.
#
# pyarrow takes `s3://KEY:SECRET@bucket`; the environment is where a secret belongs.


_BUCKETS: Final = frozenset({"s3", "s3a", "s3n", "gs", "gcs"})
"""Schemes whose first part is a bucket's name alone; abfss:// has container@account there."""
_SECRET: Final = re.compile(r"[?&](client_secret|secret_key|sig)=", re.IGNORECASE)


def without_login(address: str) -> str:
    """The same. ValueError, which does not repeat it, where it holds a key or a password."""
    scheme, mark, rest = address.partition("://")
    name = rest.partition("/")[0]
    marks = "@:" if scheme in _BUCKETS else ""
    held = ":" in name.rpartition("@")[0] or any(each in name for each in marks)
    if mark and (held or _SECRET.search(rest)):
        raise ValueError(
            f"holds a login, and a secret is never written in an address: write {scheme}:// and "
            "the place alone, and give the login in the store's usual environment "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://)"
        )
    return address


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Topics that Kafka keeps for itself; a member's pattern may match them too."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic (named as Kafka names it)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LagCase(StrEnum):
    """Why a lag figure reads as it does; all but OK, BELOW_START, NOTHING and HELD have none."""

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
    """One partition as one group sees it.

    lag is in records and never negative; None where it cannot be said. lag_seconds is the
    age of the committed position by interpolation over end-offset samples; None = unknown.
    """

    tp: TopicPartition
    committed: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    lag_seconds: float | None
    case: LagCase
    owner: str | None = None
    """member id of the owner, None where nobody owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as DescribeGroups / ConsumerGroupDescribe tells it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class GroupState(StrEnum):
    """Kafka's; REBALANCING is KIP-848's Assigning and Reconciling, and Streams' NotReady."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    REBALANCING = "Rebalancing"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """One group at one moment. `exists` False = no such group (ListGroups tells, KIP-88 cannot)."""

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
        """Records waiting, over all partitions where it can be said; None where nowhere."""
        known = [p.lag for p in self.partitions if p.lag is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """The oldest known age of what waits, seconds; 0 where nothing does, None where unknown."""
        told = [p for p in self.partitions if p.lag is not None]
        waiting = [p.lag_seconds for p in told if p.lag]
        known = [age for age in waiting if age is not None]
        return max(known, default=None) if waiting else (0.0 if told else None)


# --- what a change costs and did cost ------------------------------------------------------


class StepKind(StrEnum):
    """A step is one membership change (or none at all, for a roll)."""

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

    The bounds are the promise that a receipt is held against. What is expected within them, and
    all times, come from the coordinator's model (`fleet.decide.expected_costs`); None = cannot be
    said.
    """

    rebalances_min: int
    rebalances_max: int
    moved_min: int | None = None
    moved_max: int | None = None
    """Partitions that change owner; None = cannot be said."""
    downtime_s: float | None = None
    """Seconds between a partition's commits beyond the usual, as a receipt records them, over the
    partitions that pause at all: p50. 0: none does; None = cannot be said."""
    note: str = ""
    rebalances_expected: int | None = None
    moved_expected: int | None = None
    downtime_p95_s: float | None = None
    settled_s: float | None = None
    """Seconds from the first member's move until the last partition has its owner."""
    backlog: int | None = None
    """Records that wait then, by this group's measured rates."""

    def __str__(self) -> str:
        if self.rebalances_min == self.rebalances_max:
            return str(self.rebalances_max)
        return f"{self.rebalances_min}-{self.rebalances_max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan. `slots` are the numbers it touches, in order."""

    kind: StepKind
    slots: tuple[int, ...]
    revision: str
    """The revision that holds these slots afterwards (WARM, OPEN, ROLL)."""
    sentence: str
    """What happens, in one sentence for people."""
    expected_cost: ExpectedCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What one change of a plan would cost done this way; figures as in Expected cost."""

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
    """The storm budget, and of a roll rollout.max_parallel."""
    cheapest: bool
    """Of those that keep the limits."""
    taken: bool
    """The plan's own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change with its stated expected cost, or the reasons why there is none."""

    id: str
    cluster: str
    group: str
    created_at: float
    snapshot_at: float
    wanted: int
    """Slots wanted after the plan."""
    revision: str
    steps: tuple[Step, ...]
    refusals: tuple[str, ...] = ()
    """Why nothing may be done now, each a sentence; with any of these the plan is not performed."""
    notes: tuple[str, ...] = ()
    """What a person should know: promises that cannot be kept, caps, named hot partitions."""
    alternatives: tuple[Alternative, ...] = ()
    """Each change of several members in other ways, its own among them."""

    @property
    def empty(self) -> bool:
        """Nothing to do."""
        return not self.steps


class ReceiptResult(StrEnum):
    """How a receipt compares with its expected cost."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNVERIFIED = "unverified"
    """The coordinator's records cannot be read (managed Kafka)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one step was expected to cost and what the coordinator recorded.

    `ours` and `others` are completed generations (classic) or assignment epochs; `aborted`
    are rounds that never completed (gaps in generation numbers).
    """

    plan_id: str
    group: str
    step: int
    kind: StepKind
    expected_cost: ExpectedCost
    ours: int
    others: int
    aborted: int
    moved: int
    longest_downtime_s: float | None
    settled_s: float | None = None
    """From the first member's move to the last record of ours; None where either is not known."""
    from_generation: int | None
    to_generation: int | None
    started_at: float
    seconds: float
    result: ReceiptResult
    sentences: tuple[str, ...] = ()
    """Named causes of others' rebalances, unclean drains, join spread, and so on."""
