"""Compares the expected cost of a step with what the coordinator recorded. Pure.

Problem: external consumers and new partitions rebalance a group too, and a plan must neither count
them nor hide behind them. Choice: a rebalance is external only if its member changes say so: all of
them are outside the step's slots, or the topic grew without a member change. A rebalance without
members (a second cooperative round, a leader's rejoin) belongs to the one before it, or to the
step. If both share a round, it counts for the step, and the receipt names the external members.
Cost: these records do not tell a leave from an expired session, so that sentences say "left or
expired".
"""

from collections.abc import Iterable

from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult
from fleet.model.rebalances import Rebalance, RebalanceCounts
from fleet.text import count_of, few, plural

_NAMED = 5


def describe_expected_cost(expected_cost: ExpectedCost) -> str:
    """Describes the simulated cost of a step; empty if there is none."""
    if expected_cost.rebalances_expected is None or expected_cost.moved_expected is None:
        return ""
    parts = [
        plural(expected_cost.rebalances_expected, "rebalance"),
        f"{plural(expected_cost.moved_expected, 'partition')} moved",
    ]
    if expected_cost.downtime_s is not None and expected_cost.downtime_p95_s is not None:
        parts.append(
            f"downtime {expected_cost.downtime_s:.2f} s (p95 {expected_cost.downtime_p95_s:.2f} s)"
        )
    if expected_cost.settled_s is not None:
        parts.append(f"settled after {expected_cost.settled_s:.1f} s")
    if expected_cost.backlog is not None:
        parts.append(f"{plural(expected_cost.backlog, 'record')} waiting then")
    return ", ".join(parts)


def make_receipt(
    *,
    plan: Plan,
    step_index: int,
    counted: RebalanceCounts | None,
    our_instances: frozenset[str],
    started_at: float,
    ended_at: float,
    moved_at: float | None = None,
    most_downtime: float | None = None,
    extra: tuple[str, ...] = (),
) -> Receipt:
    """Builds the receipt of one step [26]; unverified if `counted` is None (records unreadable).

    `our_instances` are the instance ids (of dynamic members, the member ids) of the step;
    `moved_at` is when the first of them joined or was asked to leave; a downtime of more than
    `most_downtime` seconds makes the result DIFFERS; `extra` are sentences of the performer.
    """
    step = plan.steps[step_index]
    expected_cost = step.expected_cost
    if counted is None:
        ours: list[Rebalance] = []
        others: list[Rebalance] = []
        result = ReceiptResult.UNVERIFIED
        sentences = ["Fleet cannot read the coordinator's records, so nothing was counted."]
    else:
        ours, others = _split(counted.generations, our_instances)
        equal = expected_cost.rebalances_min <= len(ours) <= expected_cost.rebalances_max
        result = ReceiptResult.EQUAL if equal else ReceiptResult.DIFFERS
        sentences = _sentences(counted, ours, others, our_instances)
        if not equal:
            sentences.insert(0, f"{count_of(ours, 'rebalance')}, expected {expected_cost}.")
        still = counted.moved_silence_s  # others had no input
        if most_downtime is not None and still > most_downtime:
            result = ReceiptResult.DIFFERS
            sentences.insert(
                0,
                f"A moved partition had {still:.1f} s of downtime, more than {most_downtime:g} s.",
            )
    return Receipt(
        plan_id=plan.id,
        group=plan.group,
        step=step_index,
        kind=step.kind,
        expected_cost=expected_cost,
        rebalances=len(ours),
        external_rebalances=len(others),
        aborted=counted.aborted if counted else 0,
        moved=sum(len(generation.moved) for generation in ours),
        longest_downtime_s=counted.longest_silence_s if counted else None,
        from_generation=counted.from_generation if counted else None,
        to_generation=counted.to_generation if counted else None,
        started_at=started_at,
        seconds=max(0.0, ended_at - started_at),
        result=result,
        settled_s=max(0.0, ours[-1].ended_at - moved_at) if ours and moved_at else None,
        sentences=(*sentences, *extra),
    )


def _split(
    generations: Iterable[Rebalance], our_instances: frozenset[str]
) -> tuple[list[Rebalance], list[Rebalance]]:
    ours: list[Rebalance] = []
    others: list[Rebalance] = []
    last = ours
    for generation in generations:
        changed = _changed(generation)
        if changed & our_instances:
            last = ours
        elif changed or generation.added:
            last = others
        # else: it names no member and belongs to the one before
        last.append(generation)
    return ours, others


def _changed(generation: Rebalance) -> frozenset[str]:
    parts = (generation.joined, generation.left, generation.replaced, generation.resubscribed)
    return frozenset().union(*parts)


def _sentences(
    counted: RebalanceCounts,
    ours: list[Rebalance],
    others: list[Rebalance],
    our_instances: frozenset[str],
) -> list[str]:
    found = [f"External: generation {each.number}, {_cause(each)}." for each in others]
    for generation in ours:
        external = _changed(generation) - our_instances
        if external:
            found.append(
                f"Generation {generation.number} also has external members: {_names(external)}."
            )
        elif generation.added:
            found.append(f"Generation {generation.number} also has {_added(generation)}.")
    if counted.aborted:
        before = [str(each.number) for each in counted.generations if each.aborted]
        found.append(
            f"{plural(counted.aborted, 'round')} never completed, before generation "
            f"{', '.join(before)}."
        )
    longest = counted.longest_silence_s or 0.0
    paused = {tp: pause for tp, pause in counted.open_downtimes.items() if pause > longest}
    if paused:
        so_far = max(paused.values())
        found.append(
            f"{plural(len(paused), 'moved partition')} ({_names(map(str, paused))}) had no commit "
            f"yet: {so_far:.1f} s of downtime so far."
        )
    if stayed := counted.stayed_silences:
        found.append(
            f"{plural(len(stayed), 'partition')} ({_names(map(str, stayed))}) had no commit for up "
            f"to {max(stayed.values()):.1f} s, but kept their owner. Brokers or the owner did not "
            "answer, or no records came."
        )
    if counted.undecoded:
        found.append(f"Fleet could not decode {plural(counted.undecoded, 'record')} of the group.")
    return found


def _cause(generation: Rebalance) -> str:
    parts = []
    if generation.joined:
        parts.append(f"{_names(generation.joined)} joined")
    if generation.left:
        parts.append(f"{_names(generation.left)} left or expired")
    if generation.replaced:
        parts.append(f"{_names(generation.replaced)} came back as a new member")
    if generation.resubscribed:
        parts.append(f"{_names(generation.resubscribed)} changed its topics")
    if generation.added:
        parts.append(_added(generation))
    return " and ".join(parts) or "another round of the same change"


def _added(generation: Rebalance) -> str:
    number = len(generation.added)
    topics = sorted({tp.topic for tp in generation.added})
    return f"{plural(number, 'partition')} added to {', '.join(topics)}"


def _names(members: Iterable[str]) -> str:
    return few(sorted(members), _NAMED)
