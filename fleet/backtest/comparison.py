"""Replays one load through several rules, and shows them beside the floor of the load."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet.backtest.load import LoadSeries
from fleet.backtest.ours import policy_rule
from fleet.backtest.replay import Outcome, Rule, Setting, replay
from fleet.backtest.rules import clairvoyant, flink, floor_of, keda, packing_hours
from fleet.errors import ConfigError

THRESHOLD: Final = 10.0
"""Seconds of one worker's reading that KEDA's `lagThreshold` stands for by default."""
_Maker = Callable[[LoadSeries, Setting, float], Rule]
RULES: Final[Mapping[str, _Maker]] = {
    "drain_time": lambda load, setting, _: policy_rule(
        {"policy": "drain_time", "starts_in": setting.start},
        partitions=load.partitions,
        protocol=setting.protocol,
    ),
    "packed": lambda load, setting, _: policy_rule(
        {"policy": "packed"}, partitions=load.partitions, protocol=setting.protocol
    ),
    "lag": lambda load, setting, threshold: policy_rule(
        {"policy": "lag", "records_per_worker": round(threshold)},
        partitions=load.partitions,
        protocol=setting.protocol,
    ),
    "keda": lambda _, __, threshold: keda(threshold, stabilisation=0.0),
    "keda-5m": lambda _, __, threshold: keda(threshold, stabilisation=300.0),
    "keda-30m": lambda _, __, threshold: keda(threshold, stabilisation=1_800.0),
    "keda-with-lag": lambda _, __, threshold: keda(
        threshold, stabilisation=0.0, only_with_lag=True
    ),
    "flink": lambda _, __, ___: flink(),
    "clairvoyant": lambda load, setting, _: clairvoyant(load, setting),
}
"""Rules by the name that `--policy` takes; `declared` is the policy of a group in fleet.yaml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Holds what each rule cost on one load."""

    load: LoadSeries
    floor_hours: float
    """Hours in which a record is late, whatever the number of workers."""
    packing_hours: float
    """Worker hours of a packing that knows the load."""
    outcomes: Mapping[str, Outcome]

    def as_json(self) -> dict[str, Any]:
        """Returns the load, its floor, and the figures of each rule."""
        load = self.load
        return {
            "load": {
                "name": load.name,
                "partitions": load.partitions,
                "hours": round(load.seconds / 3_600, 2),
                "records_per_second": round(float(load.rates.sum(axis=1).mean()), 1),
                "floor_late_hours": round(self.floor_hours, 3),
                "packing_worker_hours": round(self.packing_hours, 1),
            },
            "policies": {
                name: {
                    "late_hours": round(found.late_hours, 3),
                    "worker_hours": round(found.worker_hours, 1),
                    "rebalances": found.rebalances,
                    "downtime_seconds": round(found.downtime, 1),
                    "backlog_record_seconds": round(found.backlog_seconds),
                    "right_at_once": round(found.right_at_once(load), 3),
                }
                for name, found in self.outcomes.items()
            },
        }


def compare(
    load: LoadSeries,
    setting: Setting,
    names: Iterable[str],
    *,
    threshold: float | None = None,
    declared: Rule | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Replays the load through these rules; threshold: KEDA's `lagThreshold`, in records."""
    each = setting.capacity * THRESHOLD if threshold is None else threshold
    outcomes = {}
    for name in names:
        progress(name)
        if name == "declared":
            if declared is None:
                raise ConfigError("fleet.yaml declares no policy of the group that can be replayed")
            rule = declared
        else:
            rule = RULES[name](load, setting, each)
        by = replace(setting, protocol="roundrobin") if name == "clairvoyant" else setting
        outcomes[name] = replay(load, rule, by)
    late, due = floor_of(load, setting)
    packed = packing_hours(due, load.step, setting.capacity)
    return Comparison(load=load, floor_hours=late, packing_hours=packed, outcomes=outcomes)
