"""What `fleet bench gate` makes of its runs: tables, goals, JSON. Pure.

Problem, ways and goals are in `fleet.bench.gate_bench`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from fleet.bench.figures import Goal, Judged, Spread, spread

BASE: Final = 2
"""Members of the group before the gate opens."""
MOST_SPREAD: Final = 0.1
MOST_JOINS: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 2}
MOST_LEAVES: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 1}
MOST_SETTLED: Final = 1.5
MOST_PAUSE: Final = 0.8
"""Seconds beside one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What is to be measured."""

    joins: tuple[int, ...] = (2, 5, 10)
    runs: int = 12
    ordinary_runs: int = 1
    patient_runs: int = 2
    """Of members that wait for their heartbeats."""
    max_settled: float = MOST_SETTLED
    max_pause: float | None = None
    """The goal for the longest pause at p95; None: 0.8 s + the median batch."""
    max_rebalances: int | None = None
    """The goal per gate; None: the protocol's."""
    max_spread: float = MOST_SPREAD
    fresh: bool = False
    """New processes for every gate, instead of the same ones again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One recorded rebalance."""

    joined: int
    moved: int
    """Partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of one change; None where they are not known."""

    settled: float | None = None
    pause: float | None = None
    """The longest of a partition [27]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """k joins, together or as they come, and the leave after them."""

    k: int
    joins: tuple[Round, ...]
    """What was recorded for the joins."""
    leaves: tuple[Round, ...]
    spread: float | None
    """Seconds between the first and the last subscribe; None where it is not known."""
    join: Took = Took()
    leave: Took = Took()

    @property
    def joining(self) -> int:
        """Rebalances of the joins."""
        return len(self.joins)

    @property
    def leaving(self) -> int:
        """Rebalances of the leave."""
        return len(self.leaves)

    def sentence(self) -> str:
        """For people."""
        apart = "" if self.spread is None else f", subscribes {self.spread * 1000:.0f} ms apart"
        rounds = "; ".join(f"{r.joined} joined, {r.moved} moved" for r in self.joins)
        return (
            f"+{self.k}: {self.joining} rebalance(s) ({rounds}){apart}, {_told(self.join)}; "
            f"-{self.k}: {self.leaving} rebalance(s), {_told(self.leave)}"
        )

    def as_json(self) -> dict[str, Any]:
        """One run."""
        return {
            "rebalances": self.joining,
            "rounds": [asdict(each) for each in self.joins],
            "leave_rebalances": self.leaving,
            "spread_seconds": None if self.spread is None else round(self.spread, 4),
            "join": asdict(self.join),
            "leave": asdict(self.leave),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult(Judged):
    """Both ways on one protocol."""

    protocol: str
    options: GateOptions
    runs: tuple[GateRun, ...]
    patient: tuple[GateRun, ...]
    """The same gates with members that wait for their heartbeats."""
    cpu: dict[str, float]
    """CPU seconds of a gate and its leave, by process: the broker's, the workers'."""
    patient_cpu: dict[str, float]
    batch: float
    """Seconds of the median batch."""
    at_once: tuple[GateRun, ...]
    """The ordinary way: k dynamic workers started together, each joins when it is ready."""
    in_turn: tuple[GateRun, ...]
    """The ordinary way: each started when the one before it has joined."""
    lost: int
    twice: int

    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""
        most = self.options.max_rebalances
        joins = MOST_JOINS[self.protocol] if most is None else most
        spreads = [run.spread for run in self.runs]
        known = [each for each in spreads if each is not None]
        widest = max(known) if known and len(known) == len(spreads) else None
        least = min((run.joining for run in self.runs), default=None)
        missing = len(self.options.joins) * self.options.runs - len(self.runs)
        pause = (
            MOST_PAUSE + self.batch if self.options.max_pause is None else self.options.max_pause
        )
        settled, paused = _worst(self.runs, "settled"), _worst(self.runs, "pause")
        return (
            Goal(what="settled at p95, seconds", limit=self.options.max_settled, measured=settled),
            Goal(what="longest pause at p95, seconds", limit=pause, measured=paused),
            Goal(what="rebalances per gate", limit=joins, measured=_most(self.runs, "joining")),
            Goal(what="gates without any rebalance", limit=0, measured=float(least == 0)),
            Goal(
                what="rebalances per batched leave",
                limit=MOST_LEAVES[self.protocol],
                measured=_most(self.runs, "leaving"),
            ),
            Goal(what="spread of joins, seconds", limit=self.options.max_spread, measured=widest),
            Goal(what="records lost", limit=0, measured=self.lost),
            Goal(what="records processed twice", limit=0, measured=self.twice),
            Goal(what="runs missing", limit=0, measured=missing),
        )

    def figures(self) -> dict[str, Any]:
        """See Judged; with the goals an element of `protocols`."""
        return {
            "protocol": self.protocol,
            "base": BASE,
            "fresh": self.options.fresh,
            "joins": [self._one(k) for k in self.options.joins],
            "batch_seconds": round(self.batch, 3),
            "cpu_seconds_per_gate": {
                "gate": _rounded(self.cpu),
                "by_heartbeats": _rounded(self.patient_cpu),
            },
            "lost": self.lost,
            "twice": self.twice,
        }

    def _one(self, k: int) -> dict[str, Any]:
        spreads = self.spreads(k)
        return {
            "k": k,
            "gate": [run.as_json() for run in of(k, self.runs)],
            "by_heartbeats": [run.as_json() for run in of(k, self.patient)],
            "spread_seconds": None if spreads is None else spreads.as_json(),
            "ordinary_at_once": [run.as_json() for run in of(k, self.at_once)],
            "ordinary_in_turn": [run.as_json() for run in of(k, self.in_turn)],
        }

    def spreads(self, k: int) -> Spread | None:
        """Of the gates of k."""
        return spread(r.spread for r in self.runs if r.k == k and r.spread is not None)

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a heading and a line per k and way."""
        head = ("joins", "way", "runs", "rebalances", "settled p50", "p95", "pause p50", "p95")
        shown: list[tuple[str, ...]] = [(*head, "leave", "settled p50", "p95", "pause p50", "p95")]
        ways = {
            "gate": self.runs,
            "by heartbeats": self.patient,
            "ordinary, at once": self.at_once,
            "in turn": self.in_turn,
        }
        for k in self.options.joins:
            for way, runs in ways.items():
                mine = of(k, runs)
                joins, leaves = [run.join for run in mine], [run.leave for run in mine]
                shown.append(
                    (
                        f"+{k}",
                        way,
                        str(len(mine)),
                        told(run.joining for run in mine),
                        *_seconds(joins),
                        told(run.leaving for run in mine),
                        *_seconds(leaves),
                    )
                )
        return shown

    def remarks(self) -> list[str]:
        """What the table has no column for."""
        how = "2 (x3): 2 rebalances in each of 3 runs"
        apart = spread(r.spread for r in self.runs if r.spread is not None)
        lines = [f"beside {BASE} members; {how}; lost {self.lost}, twice {self.twice}"]
        if apart is not None:
            lines.append(
                f"subscribes through the gate: {apart.p50 * 1000:.0f} ms apart at p50, "
                f"{apart.max * 1000:.0f} ms at most; median batch {self.batch:.2f} s"
            )
        for way, cpu in (("gate", self.cpu), ("by heartbeats", self.patient_cpu)):
            spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cpu.items())
            lines.append(f"CPU of a change up and down, {way}: {spent}")
        return lines


def _told(took: Took) -> str:
    parts = []
    if took.settled is not None:
        parts.append(f"settled after {took.settled:.2f} s")
    if took.pause is not None:
        parts.append(f"longest pause {took.pause:.2f} s")
    return ", ".join(parts) or "nothing known of its time"


def _rounded(cpu: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in cpu.items()}


def _worst(runs: Sequence[GateRun], what: str) -> float | None:
    """At p95 over all changes up and down; None where one is not known."""
    found = [getattr(took, what) for run in runs for took in (run.join, run.leave)]
    known = spread(each for each in found if each is not None)
    return None if known is None or known.measured < len(found) else known.p95


def _seconds(changes: Sequence[Took]) -> tuple[str, ...]:
    shown: list[str] = []
    for what in ("settled", "pause"):
        known = spread(each for took in changes if (each := getattr(took, what)) is not None)
        shown += ("-", "-") if known is None else (f"{known.p50:.2f} s", f"{known.p95:.2f} s")
    return tuple(shown)


def of(k: int, runs: Sequence[GateRun]) -> list[GateRun]:
    """The runs of k joins."""
    return [run for run in runs if run.k == k]


def _most(runs: Sequence[GateRun], what: str) -> int | None:
    return max((getattr(run, what) for run in runs), default=None)


def told(counts: Any) -> str:
    """`1 (x11), 2 (x1)`: each count and how often it was."""
    found = sorted(Counter(counts).items())
    return ", ".join(f"{count} (x{times})" for count, times in found) or "-"
