"""Rules of scaling from elsewhere, from their published definitions, and a clairvoyant.

Problem: a rule is judged beside those that people already use. Choice: the rules of KEDA's Kafka
scaler with the Horizontal Pod Autoscaler, and of Flink's autoscaler, each with its defaults. A
clairvoyant knows the load and starts workers early enough. Cost: the rules decide at the pace of
the back-test, and what their controllers do beside the number is left out.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.backtest.load import LoadSeries
from fleet.backtest.replay import TICK, Observation, Rule, Setting, replay
from fleet.decide.packing import members_of, pack
from fleet.lag.lag_columns import Floats

CHANGE: Final = 600.0
"""Worker seconds that a clairvoyant pays for a change: one worker for ten minutes."""
_TOLERANCE: Final = 0.1
"""The autoscaler of Kubernetes ignores a ratio of wanted to present below this."""


def keda(
    threshold: float, *, stabilisation: float = 300.0, only_with_lag: bool = False, least: int = 1
) -> Rule:
    """Returns KEDA's Kafka scaler: waiting records divided by `lagThreshold`.

    stabilisation: seconds over which the HPA takes the largest number before it removes pods (300
    by its default). only_with_lag: `limitToPartitionsWithLag`. The HPA at most doubles, or adds 4.
    """
    wanted: deque[tuple[float, int]] = deque()

    def rule(seen: Observation) -> int:
        most = len(seen.waiting)
        if only_with_lag:
            most = sum(lag >= 1 for lag in seen.waiting)
        lag = math.floor(sum(seen.waiting))
        now = seen.members + seen.starting
        raw = min(math.ceil(lag / threshold), most)
        if now and raw and abs(lag / threshold / now - 1.0) <= _TOLERANCE:
            raw = now
        raw = max(least, raw)
        wanted.append((seen.at, raw))
        while wanted[0][0] < seen.at - stabilisation:
            wanted.popleft()
        if raw > now:
            return min(raw, max(2 * now, now + 4))
        return min(now, max(each for _, each in wanted))

    return rule


def flink(*, restart: float = 300.0, least: int = 1) -> Rule:
    """Returns Flink's autoscaler with its defaults.

    Means over 15 minutes, from 5 minutes after a change on; target utilisation 0.7, between 0.4 and
    1; backlog read in 30 minutes; at most 60 % fewer, as the largest number of an hour; a divisor
    of the partitions.
    """
    window, stable, catch_up, down, behind = 900.0, 300.0, 1_800.0, 3_600.0, 300.0
    seen_since: deque[Observation] = deque()
    asked: deque[tuple[float, int]] = deque()
    changed, before = 0.0, -1

    def rule(seen: Observation) -> int:
        nonlocal changed, before
        now = seen.members + seen.starting
        if now != before or seen.starting:
            changed, before = seen.at, now
            seen_since.clear()
        if seen.at - changed < stable:
            return now
        seen_since.append(seen)
        while seen_since[0].at <= seen.at - window:
            seen_since.popleft()
        if seen.at - changed < stable + window:
            return now
        arrival = sum(sum(each.arrivals) for each in seen_since) / len(seen_since)
        read = sum(sum(each.reads) * each.every for each in seen_since)
        busy = sum(each.busy_seconds for each in seen_since)
        if busy <= 0 or read <= 0:
            return now
        rate = read / busy * now
        lag = sum(seen.waiting)
        catching = lag / max(arrival, 1e-9) > behind

        def capacity(utilisation: float, *, restarts: bool) -> float:
            again = arrival * restart / catch_up if restarts else 0.0
            return lag / catch_up + again + arrival / utilisation

        low = capacity(1.0, restarts=False)
        high = math.inf if catching else capacity(0.4, restarts=True)
        if low <= rate <= high:
            asked.append((seen.at, now))
            return now
        factor = max(0.4, capacity(0.7, restarts=True) / rate)
        most = len(seen.waiting)
        raw = min(most, max(least, math.ceil(now * factor)))
        raw = next((n for n in range(raw, most + 1) if most % n == 0), raw)
        asked.append((seen.at, raw))
        while asked[0][0] < seen.at - down:
            asked.popleft()
        if raw >= now:
            return raw
        if seen.at - asked[0][0] < down - 2 * seen.every:
            return now
        return min(now, max(each for _, each in asked))

    return rule


def scheduled(wanted: Sequence[int], step: float, *, ahead: float) -> Rule:
    """Returns a rule that reads its number from a schedule, `ahead` seconds early."""

    def rule(seen: Observation) -> int:
        now = min(len(wanted) - 1, int(seen.at // step))
        later = min(len(wanted) - 1, int((seen.at + ahead) // step))
        return max(wanted[now], wanted[later])

    return rule


def floor_of(load: LoadSeries, setting: Setting) -> tuple[float, Floats]:
    """Returns the late hours that no number of members avoids, and the load as it is then read.

    Each partition has a worker of its own. The second value has a row per step, in records/s.
    """
    most = replay(
        load,
        lambda _seen: load.partitions,
        Setting(capacity=setting.capacity, start=setting.start, first=load.partitions),
    )
    waiting, read = np.zeros(load.partitions), np.zeros_like(load.rates)
    for row, rates in enumerate(load.rates):
        there = waiting + rates * load.step
        read[row] = np.minimum(there, setting.capacity * load.step)
        waiting = there - read[row]
    return most.late_hours, read / load.step


def clairvoyant_sizes(load: LoadSeries, setting: Setting, *, price: float = CHANGE) -> list[int]:
    """Returns the cheapest number of members of each step under which nothing is late.

    Nothing means: beyond the floor. price: worker seconds that a change costs; 0 follows the load.
    Partitions are assigned by round robin, so that owners depend on the number alone.
    """
    _, due = floor_of(load, setting)
    count = load.partitions
    fits = np.ones((len(due), count), dtype=bool)
    for members in range(1, count):
        places = np.arange(count) % members
        of_member = np.stack([due[:, places == each].sum(axis=1) for each in range(members)])
        fits[:, members - 1] = of_member.max(axis=0) <= setting.capacity
    return _cheapest(fits, load.step, price)


def _cheapest(fits: NDArray[np.bool_], step: float, price: float) -> list[int]:
    """Returns numbers that fit, by the least sum of worker time and changes."""
    paid = np.where(fits, np.arange(1, fits.shape[1] + 1) * step, np.inf)
    cost, came = paid[0], []
    for row in paid[1:]:
        other = int(cost.argmin())
        came.append(np.where(cost <= cost[other] + price, np.arange(len(cost)), other))
        cost = np.minimum(cost, cost[other] + price) + row
    place = int(cost.argmin())
    path = [place + 1]
    for before in reversed(came):
        place = int(before[place])
        path.append(place + 1)
    return path[::-1]


def clairvoyant(load: LoadSeries, setting: Setting, *, price: float = CHANGE) -> Rule:
    """Returns the rule that knows the load; to be replayed with protocol roundrobin."""
    ahead = setting.start + setting.every + TICK
    return scheduled(clairvoyant_sizes(load, setting, price=price), load.step, ahead=ahead)


def packing_hours(due: Floats, step: float, capacity: float) -> float:
    """Returns the worker hours of Best Fit Decreasing, each step packed anew.

    due: the load as the floor reads it, known beforehand. No group can carry out such a packing,
    as packing.py says.
    """
    return sum(members_of(pack(rates.tolist(), capacity)) for rates in due) * step / 3_600
