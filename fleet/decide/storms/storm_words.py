"""Who makes a storm and how, in words: from rebalances to a cause and a worst member.

Problem: "9 rebalances" helps nobody; "orders-3 joins and leaves every 40 s" does. But a dynamic
member comes back under a new member id each time. Choice: members are counted by instance id,
else by client id, which classic member ids begin with; a storm belongs to one member where it
has a part in at least half of the rebalances, else to all together. Second cooperative rounds
belong to the round before them and are not counted again. Cost: members that share a client
id are one here, and the words say client.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fleet.model.rebalances import Cause, Rebalance
from fleet.text import brief, duration, plural

JOIN_AND_LEAVE: Final = "join and leave"
_GENERATED: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What the coordinator appends to the client id of a classic dynamic member."""
_KIP_848: Final = re.compile(r"[A-Za-z0-9_-]{22}")
"""A member id that the client made: a UUID in base64."""
_JOINS: Final = {Cause.JOIN, Cause.CREATED}
_LEAVES: Final = {Cause.LEAVE, Cause.BATCHED_LEAVE, Cause.DEPARTURE, Cause.EXPIRY}
_WITHOUT_MEMBERS: Final[Mapping[Cause, str]] = {
    Cause.PARTITIONS: "partitions of its topics come or go",
    Cause.SUBSCRIPTION: "a member changes its subscription",
    Cause.ASSIGNOR: "the assignor changes",
    Cause.LEADER_REJOIN: "the leader joins again without need",
    Cause.COORDINATOR_MOVE: "its coordinator moves",
    Cause.MIGRATION: "it migrates between protocols",
    Cause.REBORN: "it is deleted and made again",
}


def person(name: str, clients: Mapping[str, str]) -> str:
    """Who a member is, over all its comings and goings: instance id, else client."""
    client = clients.get(name) or (_GENERATED.sub("", name) if _GENERATED.search(name) else None)
    return name if client is None else f"client {client}"


def describe(
    rebalances: Iterable[Rebalance], clients: Mapping[str, str]
) -> tuple[str, str | None, str]:
    """Cause, worst member and words for the rebalances of a storm."""
    seen = list(rebalances)
    first = [r for r in seen if r.cause is not Cause.SECOND_ROUND] or seen
    if not first:
        return str(Cause.UNKNOWN), None, "nothing is recorded of it"
    comings: dict[str, list[float]] = defaultdict(list)
    goings: dict[str, list[float]] = defaultdict(list)
    parts: Counter[str] = Counter()
    for rebalance in first:
        came = {person(name, clients) for name in rebalance.joined}
        went = {person(name, clients) for name in rebalance.left}
        for name in came:
            comings[name].append(rebalance.ended_at)
        for name in went:
            goings[name].append(rebalance.ended_at)
        parts.update(came | went)
    cause = _cause(first)
    worst, part = min(parts.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    if part >= 2 and 2 * part >= len(first):
        expired = cause == Cause.EXPIRY
        words = _of_one(brief(worst), comings[worst], goings[worst], expired=expired)
        return cause, brief(worst), words
    if parts:
        words = _of_many(first, comings, goings, brief(worst), part)
        return cause, brief(worst) if part > 1 else None, words
    return cause, None, _of_none(first, cause)


def _cause(rebalances: Sequence[Rebalance]) -> str:
    """The most frequent cause; joins and leaves, in turn or in the same round, are one."""
    parts = [{r.cause, *r.also} for r in rebalances]
    joins, leaves = (sum(bool(p & which) for p in parts) for which in (_JOINS, _LEAVES))
    expiries = sum(Cause.EXPIRY in p for p in parts)
    if expiries and 3 * expiries >= len(parts):
        return str(Cause.EXPIRY)
    if joins and leaves and 2 * (joins + leaves) >= len(parts):
        return JOIN_AND_LEAVE
    count = Counter(r.cause for r in rebalances)
    return str(min(count, key=lambda c: (-count[c], c.value)))


def _period(times: Sequence[float]) -> float | None:
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def _of_one(name: str, comings: Sequence[float], goings: Sequence[float], *, expired: bool) -> str:
    """`orders-3 joins and leaves every 40 s`."""
    if comings and goings:
        does = "times out and joins again" if expired else "joins and leaves"
        period = _period(comings if len(comings) >= len(goings) else goings)
    else:
        does = "joins" if comings else "times out" if expired else "leaves"
        period = _period(comings or goings)
    every = f" every {duration(period)}" if period else ""
    return f"{name} {does}{every}"


def _of_many(
    rebalances: Sequence[Rebalance],
    comings: Mapping[str, Sequence[float]],
    goings: Mapping[str, Sequence[float]],
    worst: str,
    part: int,
) -> str:
    """Many members, each a few times: a deploy one by one, or ids that are new each time."""
    came, went = (sum(map(len, by.values())) for by in (comings, goings))
    lasted = duration(rebalances[-1].ended_at - rebalances[0].ended_at)
    done = [f"{plural(n, word)}" for n, word in ((came, "join"), (went, "leave")) if n]
    members = len(comings.keys() | goings.keys())
    said = f"{plural(members, 'member')}, one after another: {' and '.join(done)} in {lasted}"
    if all(_KIP_848.fullmatch(name) for name in comings.keys() | goings.keys()) and came and went:
        return f"{said} (or one that comes back under a new id each time)"
    return f"{said}, most often {worst} ({part} times)" if part > 1 else said


def _of_none(rebalances: Sequence[Rebalance], cause: str) -> str:
    """Nobody joined or left."""
    said = _WITHOUT_MEMBERS.get(Cause(cause), "no member joined or left, the log tells no cause")
    period = _period([r.ended_at for r in rebalances])
    return f"{said}, every {duration(period)}" if period else said
