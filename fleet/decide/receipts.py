"""Compares what a step was expected to cost with what the coordinator recorded. Pure.

Problem: other people's consumers, topic owners and the clock rebalance a group too, and a
plan must not answer for them, nor hide behind them. Choice: a recorded rebalance is others'
only where its own member diff says so: all who joined, left or were replaced lie outside the
step's slots, or the topic grew and nobody came or went. A rebalance that names nobody (the
second round of a cooperative change, a leader's rejoin) belongs with the one before it, and
is ours where none is. Where ours and others' members share a round it is ours, and the
others are named: the round would have happened anyway. Cost: whether a member left or its
session expired cannot be told from these records, so the sentences say "left or expired".
"""

from collections.abc import Iterable

from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult
from fleet.model.rebalances import Rebalance, RebalanceCounts
from fleet.text import count_of, few, plural

_NAMED = 5


def expectation(expected_cost: ExpectedCost) -> str:
    """What the coordinator's model expected of a step, in words; empty where it said nothing."""
    if expected_cost.rebalances_expected is None or expected_cost.moved_expected is None:
        return ""
    parts = [
        plural(expected_cost.rebalances_expected, "rebalance"),
        f"{plural(expected_cost.moved_expected, 'partition')} moved",
    ]
    if expected_cost.downtime_s is not None and expected_cost.downtime_p95_s is not None:
        parts.append(
            f"pause {expected_cost.downtime_s:.2f} s (p95 {expected_cost.downtime_p95_s:.2f} s)"
        )
    if expected_cost.settled_s is not None:
        parts.append(f"settled after {expected_cost.settled_s:.1f} s")
    if expected_cost.backlog is not None:
        parts.append(f"{plural(expected_cost.backlog, 'record')} waiting then")
    return ", ".join(parts)


def judge(
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
    """The receipt of one step [26]; unverified where `counted` is None (records unreadable).

    `our_instances` are the instance ids (or, of dynamic members, the member ids) that the
    step may touch; `moved_at` is when the first of them joined, or was asked to be removed;
    `most_downtime`: seconds beyond which the downtime of a partition differs from what such a step
    is for; `extra` are sentences of whoever performed it.
    """
    step = plan.steps[step_index]
    expected_cost = step.expected_cost
    if counted is None:
        ours: list[Rebalance] = []
        others: list[Rebalance] = []
        result = ReceiptResult.UNVERIFIED
        sentences = ["The coordinator's records cannot be read here, so nothing was counted."]
    else:
        ours, others = _split(counted.generations, our_instances)
        equal = expected_cost.rebalances_min <= len(ours) <= expected_cost.rebalances_max
        result = ReceiptResult.EQUAL if equal else ReceiptResult.DIFFERS
        sentences = _sentences(counted, ours, others, our_instances)
        if not equal:
            sentences.insert(
                0, f"{count_of(ours, 'rebalance')} where {expected_cost} was expected."
            )
        still = counted.moved_silence_s  # what did not move, or idled before it did, had no input
        if most_downtime is not None and still > most_downtime:
            result = ReceiptResult.DIFFERS
            told = (
                f"A partition that moved stood still for {still:.1f} s, over {most_downtime:g} s."
            )
            sentences.insert(0, told)
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
        # else: it names nobody, so it belongs with the one before
        last.append(generation)
    return ours, others


def _changed(generation: Rebalance) -> frozenset[str]:
    told = (generation.joined, generation.left, generation.replaced, generation.resubscribed)
    return frozenset().union(*told)


def _sentences(
    counted: RebalanceCounts,
    ours: list[Rebalance],
    others: list[Rebalance],
    our_instances: frozenset[str],
) -> list[str]:
    said = [f"Not ours: generation {each.number}, {_cause(each)}." for each in others]
    for generation in ours:
        external = _changed(generation) - our_instances
        if external:
            said.append(
                f"Generation {generation.number} also holds a change of others: {_names(external)}."
            )
        elif generation.added:
            said.append(f"Generation {generation.number} also found {_added(generation)}.")
    if counted.aborted:
        before = [str(each.number) for each in counted.generations if each.aborted]
        said.append(
            f"{plural(counted.aborted, 'round')} never completed, before generation "
            f"{', '.join(before)}."
        )
    longest = counted.longest_silence_s or 0.0
    paused = {tp: pause for tp, pause in counted.open_downtimes.items() if pause > longest}
    if paused:
        so_far = max(paused.values())
        said.append(
            f"{plural(len(paused), 'partition')} ({_names(map(str, paused))}) that moved had no "
            f"commit yet when the records were read: paused for {so_far:.1f} s so far."
        )
    if stayed := counted.stayed_silences:
        said.append(
            f"{plural(len(stayed), 'partition')} ({_names(map(str, stayed))}) had no commit for up "
            f"to {max(stayed.values()):.1f} s, though no other member took over: brokers or the "
            "owner did not answer, or nothing came."
        )
    if counted.undecoded:
        said.append(f"{plural(counted.undecoded, 'record')} of the group could not be decoded.")
    return said


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
    return " and ".join(parts) or "a further round of the same change"


def _added(generation: Rebalance) -> str:
    number = len(generation.added)
    topics = sorted({tp.topic for tp in generation.added})
    return f"{plural(number, 'partition')} added to {', '.join(topics)}"


def _names(members: Iterable[str]) -> str:
    return few(sorted(members), _NAMED)
