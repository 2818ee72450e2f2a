"""Slots, the slot targets and a group's change: the contract between workers and whoever acts.

Problem: a static member (KIP-345) keeps its partitions over a restart only if exactly one
process uses its `group.instance.id`, and several members join in one rebalance only if they
join together. Choice: a slot is a leased number, its instance id is `<group>-<n>`; one slot targets
object per group says which slots are open and what is asked of their owners. Every write
names the version or token it saw (compare-and-set), so a stale actor changes nothing.
Who may take over is the lease's business, commits are Kafka's.

Expiry needs no clocks that agree: an observer calls a lease dead when (owner, token,
counter) has not changed for the lease duration on the observer's own monotonic clock, while it
looked and its own writes went through (`fleet.slots.evidence`). Who has seen the owner's process
end says so (`end_owner`), and nobody waits. Values and the store's contract are
here, for every room; the store's rules are in `fleet.slots.store`, the places that keep it beside
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet.model import Plan, Receipt, TopicPartition


class Phase(StrEnum):
    """What the owner of a slot is doing; written by the owner alone."""

    FREE = "free"
    """Nobody holds it."""
    JOINING = "joining"
    """Taken; consumer built and connected, subscribes at `open_at`, not yet ready."""
    ACTIVE = "active"
    """Ready: has committed a batch or had an empty poll since it took the slot."""
    DRAINING = "draining"
    """Reads no more, finishes the batch in hand."""
    DRAINED = "drained"
    """Asked to leave: all is committed, still heartbeating, waits for the others."""
    CLOSED = "closed"
    """Consumer closed for a leave; member_id stays for the batched LeaveGroup. Held still: a
    dynamic member that polls no more, since its own close would be a leave of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One numbered place in a group, as stored.

    counter is raised by every renewal; token by every change of owner. member_id is
    Kafka's for the last member that used the slot (needed by LeaveGroup); spark_session is
    the owner's Spark Connect session id, which its successor interrupts where the slot was
    not released cleanly.
    """

    group: str
    number: int
    owner: str | None = None
    """worker name."""
    token: int = 0
    counter: int = 0
    phase: Phase = Phase.FREE
    clean: bool = True
    """False from taking until a clean release: the next new owner must cure first."""
    member_id: str | None = None
    spark_session: str | None = None
    revision: str | None = None
    """What the (last) owner runs."""
    batches: int = 0
    """Batches committed by this owner since it took the slot."""
    error: str | None = None
    """The owner's last error in a sentence, None when its last batch went well."""
    owner_ended: bool = False
    """Its owner's process is known to have ended: nobody waits for its lease."""
    lease: float = 0.0
    """Seconds of the lease that its owner renews by, where it told."""

    def instance_id(self) -> str:
        """The member's `group.instance.id`."""
        return f"{self.group}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Asks the owner with this token to drain and release; only `revision` may take it then.

    Void for asking once the token has moved on; keeps pinning the new owner until it is removed, or
    until the slot could be taken and the revision had no living standby for a lease.
    """

    token: int
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTargets:
    """What is asked of a group's slots. Written whole by compare-and-set on `version`."""

    group: str
    version: int = 0
    open: frozenset[int] = frozenset()
    """Slots that may be held."""
    open_at: float = 0.0
    """Wall time at which owners of freshly opened slots subscribe (all at once)."""
    leaving: frozenset[int] = frozenset()
    """Slots that drain, wait for each other, close together; a subset of `open`."""
    handover: Mapping[int, Handover] = field(default_factory=dict)
    rejoin: Mapping[int, int] = field(default_factory=dict)
    """slot → token of the owner that shall leave and join again once (forced rebalance)."""
    quarantined: frozenset[int] = frozenset()
    """Slots closed because a foreign process uses their instance id; never taken."""
    plan_id: str | None = None
    """The change that wrote `leaving`/`handover`; its lease is the group's (see Change)."""


class ChangeState(StrEnum):
    """A change is a plan being carried out."""

    RUNNING = "running"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The plan that is being (or was last) carried out for a group, and its actor's lease."""

    group: str
    plan: Plan
    state: ChangeState
    actor: str
    token: int
    counter: int
    step: int
    """Index of the step in hand; len(plan.steps) when all are done."""
    started_at: float
    ended_at: float | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    """What the step in hand has to remember across a crash of its actor (JSON values), as the
    kinds of step have it (`fleet.act.steps`)."""
    receipts: tuple[Receipt, ...] = ()
    sentence: str = ""
    traceback: str | None = None
    """Of the job's code, where that is why the change was rolled back or failed."""
    lease: float = 0.0
    """Seconds of the lease that its actor renews by, where it told."""

    @property
    def step_began(self) -> float:
        """Wall time at which the step in hand began; where that is not known, the change did."""
        return float(str(self.detail.get("started_at", self.started_at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker says of itself, at each change and at least once a lease."""

    worker: str
    group: str
    revision: str
    phase: str
    """starting | standby | joining | active | draining | drained | closed | failed."""
    slot: int | None
    counter: int
    http_port: int | None
    batches: int = 0
    records: int = 0
    busy_seconds: float = 0.0
    """Time spent inside batches; records / busy_seconds is the worker's capacity."""
    joined_at: float | None = None
    """Wall time of its subscribe() (join spread is max - min over the slot targets)."""
    last_commit_at: float | None = None
    error: str | None = None
    traceback: str | None = None
    """Of the job's code, where the error is the job's; a few thousand characters at most."""
    spark_ui: str | None = None
    """Address of the web UI of its Spark, where that has one."""
    reading: str | None = None
    """How records reach its Spark now: inline, ranges or columnar; None without a slot."""
    unclean: bool = False
    """A drain ran into drain_timeout."""
    since: float | None = None
    """Wall time since when its revision is wanted: who is newest [22]; None = not told."""
    in_hand: bool = False
    """A batch is being processed, or its commit is due; told of an owner's first batches."""
    gap: str | None = None
    """Where partitions went on whose commits Kafka had deleted, in a sentence."""


DAMAGED: Final = -1  # in place of a mark's attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A partition that is stopped because its next record cannot be processed, or is not there."""

    group: str
    tp: TopicPartition
    offset: int
    error: str
    attempts: int
    """To process the record; 0: the log does not hold it; DAMAGED: it cannot be read there."""
    revision: str
    at: float

    @property
    def of_log(self) -> bool:
        """Whether the log is the reason, and not the code."""
        return self.attempts <= 0


UNMANAGED: Final = "unmanaged"
"""Reason of the stored pause of an unmanaged group; `fleet pause` takes no such reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Stops all changes of a group, or of every group if `group` is None."""

    group: str | None
    reason: str
    by: str
    at: float

    @property
    def is_unmanaged(self) -> bool:
        """Tells whether `fleet unmanage` stored it, which `fleet manage` takes back."""
        return self.group is not None and self.reason == UNMANAGED


ILL_AFTER = 3
"""Ends of a process after which its worker counts as one that cannot run."""
STEADY_SECONDS = 60.0
"""Life of a process after which the ends before it count no more as failures in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One worker as its runtime sees it."""

    name: str
    group: str
    revision: str
    wanted: bool
    """False once removal was asked for."""
    running: bool
    restarts: int
    pid: int | None = None
    exit_reason: str | None = None
    """Last line or exit code of the last process that ended; None while the first one runs."""
    stuck: bool = False
    """It never ran and cannot (no such image, a Secret that is missing): exit_reason says why."""
    failures: int = 0
    """Ends in a row that nobody asked for; 0 once a process has lived for a minute."""

    @property
    def fails(self) -> bool:
        """Whether it ends again and again, or cannot be started."""
        return self.wanted and (self.stuck or self.failures >= ILL_AFTER)

    @property
    def unhealthy(self) -> bool:
        """Whether waiting for it helps nobody: it ends each time, or cannot be started."""
        return self.stuck or self.restarts >= ILL_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOpening:
    """What the slot targets that nobody has written yet shall open, where no manager does it
    [22].
    """

    slots: int
    """Slots 0 to this, less one."""
    after: float
    """Seconds since the first standby was seen, after which too few standbys are enough."""
