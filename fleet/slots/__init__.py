"""Slots, slot targets and changes: the contract between workers, managers and supervisors.

Problem: a static member (KIP-345) keeps its partitions over a restart only if exactly one process
uses its `group.instance.id`. Several members join in one rebalance only if they join together.
Choice: a slot is a leased number, and its instance id is `<group>-<n>`. One slot targets object per
group says which slots are open and what their owners have to do. Every write names the version or
token that it read (compare-and-set), so a stale actor changes nothing. The lease decides who may
take over; Kafka decides whose commits count.

Expiry needs no synchronized clocks. A lease is expired if (owner, token, counter) has not changed
for its duration on the observer's own monotonic clock. The observer must have read and written the
store meanwhile (`fleet.slots.evidence`). A supervisor that saw the owner's process end reports it
(`end_owner`), and no worker waits. This module has the values and the contract, `fleet.slots.store`
the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from fleet.model import Plan, Receipt, TopicPartition


class Phase(StrEnum):
    """What the owner of a slot is doing. Only the owner writes it."""

    FREE = "free"
    """The slot has no owner."""
    JOINING = "joining"
    """Taken. The consumer is connected and subscribes at `open_at`; not yet ready."""
    ACTIVE = "active"
    """Ready: it has committed a batch or had an empty poll since it took the slot."""
    DRAINING = "draining"
    """It reads no more and finishes the batch in hand."""
    DRAINED = "drained"
    """It was asked to leave and has committed all. It heartbeats and waits for the others."""
    CLOSED = "closed"
    """The consumer is closed for a leave; member_id stays for the batched LeaveGroup. A dynamic
    member stays open and polls no more, because its own close would be a leave of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One numbered slot of a group, as stored.

    Every renewal raises counter, every change of owner raises token. member_id is Kafka's id of the
    last member in the slot (LeaveGroup needs it). spark_session is the owner's Spark Connect
    session id; the next owner interrupts it if the slot was not released cleanly.
    """

    group: str
    number: int
    owner: str | None = None
    """Name of the worker."""
    token: int = 0
    counter: int = 0
    phase: Phase = Phase.FREE
    clean: bool = True
    """False from the take until a clean release: the next owner must clean up first."""
    member_id: str | None = None
    spark_session: str | None = None
    revision: str | None = None
    """The revision that the (last) owner runs."""
    batches: int = 0
    """Batches committed by this owner since it took the slot."""
    error: str | None = None
    """The owner's last error in a sentence; None if its last batch succeeded."""
    owner_ended: bool = False
    """Whether the owner's process is known to have ended; then no worker waits for its lease."""
    lease: float = 0.0
    """Seconds of the lease that its owner renews by; 0 if not reported."""

    def instance_id(self) -> str:
        """Returns the member's `group.instance.id`."""
        return f"{self.group}-{self.number}"


STAYS: Final = -1
"""Token of a pin that asks no owner to go: standbys of other revisions are kept waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Asks the owner with this token to drain and release; then only `revision` may take it.

    The request is void once the token has changed. The pin stays until it is removed. It ends by
    itself if the slot could be taken and the revision had no living standby for two seconds.
    """

    token: int
    """Token of the owner; STAYS: no owner is asked, and the revision keeps the slot."""
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTargets:
    """What the owners of a group's slots have to do.

    It is written as a whole, by compare-and-set on `version`.
    """

    group: str
    version: int = 0
    open: frozenset[int] = frozenset()
    """Slots that may have an owner."""
    open_at: float = 0.0
    """Wall time at which owners of freshly opened slots subscribe (all at once)."""
    leaving: frozenset[int] = frozenset()
    """Slots that drain, wait for each other, close together; a subset of `open`."""
    handover: Mapping[int, Handover] = field(default_factory=dict)
    rejoin: Mapping[int, int] = field(default_factory=dict)
    """Slot → token of the owner that has to leave and join again once (forced rebalance)."""
    quarantined: frozenset[int] = frozenset()
    """Slots that no worker may take, because an external process uses their instance id."""
    plan_id: str | None = None
    """The change that wrote `leaving` and `handover`; its lease is the group's (see Change)."""

    def without_requests(self) -> "SlotTargets":
        """Returns it without what owners are asked for; `leaving` stays."""
        return replace(self, handover={}, rejoin={})


class ChangeState(StrEnum):
    """The state of a change. A change is a plan that is carried out."""

    RUNNING = "running"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The last plan that was carried out for a group, or still is, and its actor's lease."""

    group: str
    plan: Plan
    state: ChangeState
    actor: str
    token: int
    counter: int
    step: int
    """Index of the current step; len(plan.steps) when all are done."""
    started_at: float
    ended_at: float | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    """What the current step has to remember if its actor crashes (JSON values), by kind of step
    (`fleet.act.steps`)."""
    receipts: tuple[Receipt, ...] = ()
    sentence: str = ""
    traceback: str | None = None
    """Traceback of the job's code, if that caused the rollback or failure."""
    lease: float = 0.0
    """Seconds of the lease that its actor renews by; 0 if not reported."""

    @property
    def step_began(self) -> float:
        """Returns the wall time at which the current step began, or else the change."""
        return float(str(self.detail.get("started_at", self.started_at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker reports of itself, at each change and at least once per lease."""

    worker: str
    group: str
    revision: str
    phase: str
    """starting | standby | joining | active | draining | drained | closed | failed | ended."""
    slot: int | None
    counter: int
    http_port: int | None
    batches: int = 0
    records: int = 0
    busy_seconds: float = 0.0
    """Time spent inside batches; records / busy_seconds is the worker's capacity."""
    joined_at: float | None = None
    """Wall time of its subscribe() (join spread is max - min over the opened slots)."""
    last_commit_at: float | None = None
    error: str | None = None
    traceback: str | None = None
    """Traceback of the job's code, if the error is the job's; a few thousand characters."""
    spark_ui: str | None = None
    """Address of the web UI of its Spark, if it has one."""
    reading: str | None = None
    """Reading mode: inline, ranges or columnar; None without a slot."""
    unclean: bool = False
    """A drain ran into drain_timeout."""
    since: float | None = None
    """Wall time since when its revision is wanted, to find the newest [22]; None = not known."""
    in_hand: bool = False
    """A batch is being processed, or its commit is due; reported for an owner's first batches."""
    gap: str | None = None
    """Where partitions went on whose commits Kafka had deleted, in a sentence."""


DAMAGED: Final = -1  # stored in place of the attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedPartition:
    """A partition that is stopped because its next record cannot be processed or is missing."""

    group: str
    tp: TopicPartition
    offset: int
    error: str
    attempts: int
    """Attempts to process the record; 0: the log does not have it; DAMAGED: it is unreadable there.
    """
    revision: str
    at: float

    @property
    def is_log_cause(self) -> bool:
        """Whether the log is the cause, and not the code."""
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


UNHEALTHY_AFTER_ENDS = 3
"""Number of process ends after which a worker counts as unable to run."""
STEADY_SECONDS = 60.0
"""Seconds of a process's life after which earlier ends no longer count as failures in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One worker as its runtime reports it."""

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
    """It never ran and cannot (missing image or Secret); exit_reason says why."""
    waits_for_node: bool = False
    """No node takes its pod yet; exit_reason says why."""
    failures: int = 0
    """Unrequested ends in a row; 0 once a process has lived for a minute."""

    @property
    def is_failing(self) -> bool:
        """Whether its process ends again and again, or cannot be started."""
        return self.wanted and (self.stuck or self.failures >= UNHEALTHY_AFTER_ENDS)

    @property
    def is_unhealthy(self) -> bool:
        """Whether waiting for it is useless: it ends each time, or cannot be started."""
        return self.stuck or self.restarts >= UNHEALTHY_AFTER_ENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOpening:
    """What the first slot targets of a group open if no manager writes them [22]."""

    slots: int
    """Number of slots to open, counted from 0."""
    after: float
    """Seconds since the first standby was seen, after which fewer standbys are enough."""
