"""What measured values come to, and whether a goal is met. Pure.

Problem: a mean hides the pause that pages somebody, and a figure without its goal proves
nothing. Choice: p50, p95 and the maximum by nearest rank, so that every printed figure was
really measured; a goal that could not be measured counts as missed. Cost: with few values p95
is the maximum.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values in short, seconds."""

    measured: int
    p50: float
    p95: float
    max: float
    total: float


def spread(values: Iterable[float]) -> Spread | None:
    """Median, p95 and maximum; None where nothing was measured."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(
        measured=len(ordered),
        p50=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
        max=ordered[-1],
        total=sum(ordered),
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest measured value that at least this part of them does not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and the most that it may be, or the least."""

    what: str
    limit: float
    measured: float | None
    """None: it could not be measured, so the goal is missed."""
    at_least: bool = False
    """The figure may be more than the limit, not less."""

    @property
    def met(self) -> bool:
        """Whether the figure keeps the goal."""
        if self.measured is None:
            return False
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def sentence(self) -> str:
        """Describes the goal in a sentence."""
        found = (
            "nothing was measured" if self.measured is None else f"{_short(self.measured)} measured"
        )
        bound = f"{'≥' if self.at_least else '≤'} {_short(self.limit)}"
        return f"{'met' if self.met else 'MISSED'}: {self.what} {bound}: {found}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def plain(value: Any) -> Any:
    """As YAML has it: floats to a thousandth, a dataclass by its fields."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


class BenchmarkResult(ABC):
    """What a benchmark found: a dataclass whose fields are figures, and its goals."""

    @abstractmethod
    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""

    def figures(self) -> dict[str, Any]:
        """All fields; a result adds what follows from them."""
        return dict(plain(self))

    @property
    def met(self) -> bool:
        """Every goal is met."""
        return all_met(self.goals())

    def missed(self) -> list[str]:
        """The goals that are not."""
        return [goal.what for goal in self.goals() if not goal.met]

    def answer(self) -> dict[str, Any]:
        """The figures and the goals."""
        goals = [goal.sentence() for goal in self.goals()]
        return {**plain(self.figures()), "met": self.met, "goals": goals}


def all_met(goals: Sequence[Goal]) -> bool:
    """Every goal is met, and there was one: a benchmark that measured nothing has failed."""
    return bool(goals) and all(goal.met for goal in goals)


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """Returns an SVG on white, with two sizes of text."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
            "<style>text { font: 10px sans-serif; } .title { font-size: 12px; }</style>",
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


class PlotArea(NamedTuple):
    """The part of an SVG that its axes enclose."""

    left: float
    right: float
    top: float
    below: float

    def place(self, across: float, up: float) -> tuple[float, float]:
        """Returns the position of a point, given as parts of the axes."""
        x = self.left + across * (self.right - self.left)
        return x, self.below - up * (self.below - self.top)

    def axes(self, title: str, across: tuple[float, str], up: tuple[float, str]) -> Iterator[str]:
        """Draws two axes; each has its greatest value, and a format of its five labels."""
        yield f'<text x="{self.left:g}" y="16" class="title">{title}</text>'
        line = f"M{self.left:g} {self.top:g}V{self.below:g}H{self.right:g}"
        yield f'<path d="{line}" stroke="#333" fill="none"/>'
        for part in (0.0, 0.25, 0.5, 0.75, 1.0):
            x, y = self.place(part, part)
            low, side = (form.format(part * most) for most, form in (across, up))
            yield f'<text x="{self.left - 5:g}" y="{y + 3:.1f}" text-anchor="end">{side}</text>'
            yield f'<text x="{x:.1f}" y="{self.below + 14:g}" text-anchor="middle">{low}</text>'


def legend(x: float, y: float, name: str, colour: str) -> Iterator[str]:
    """Draws a short line in a colour, and its name beside it."""
    yield f'<path d="M{x:g} {y - 3:g}h20" stroke="{colour}" stroke-width="2"/>'
    yield f'<text x="{x + 26:g}" y="{y:g}">{name}</text>'


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """How many times more the baseline costs; None where that is no number (ours is 0)."""
    if theirs is None or not ours:
        return None
    return round(theirs / ours, 2)


def seconds_between(
    events: Iterable[tuple[str, str, float]], *, begin: str, end: str
) -> list[float]:
    """Seconds from each `begin` to the next `end` of the same worker, in order.

    events are (worker, event, time). A second `begin` replaces the first: what it began was
    given up.
    """
    since: dict[str, float] = {}
    found = []
    for worker, event, at in events:
        if event == begin:
            since[worker] = at
        elif event == end and worker in since:
            found.append(at - since.pop(worker))
    return found


_TICKS: Final = os.sysconf("SC_CLK_TCK")
Pids = Callable[[], Iterable[int]]


class CpuUsage:
    """From its making to `seconds`: what the processes of each name spent, new ones too."""

    def __init__(self, pids: Mapping[str, Pids]) -> None:
        self._pids = pids
        self._before = {name: _each(found()) for name, found in pids.items()}

    def seconds(self) -> dict[str, float]:
        """CPU seconds, user and system, of all threads."""
        return {
            name: sum(now - self._before[name].get(pid, 0.0) for pid, now in _each(found()).items())
            for name, found in self._pids.items()
        }


def _each(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds so far; 0 of a process that is gone."""
    found = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # Behind the name: state is field 3; utime, stime, cutime and cstime are 14 to 17.
        found[pid] = sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS
    return found


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, with its ended children; 0 where it is gone."""
    return _each([pid]).get(pid, 0.0)


def peak(pid: int) -> float:
    """VmHWM in MB; 0 where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(sizes[0]) / 1024 if sizes else 0.0


def below(pid: int) -> list[int]:
    """Returns all descendants of these processes."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(each) for each in task.read_text(encoding="ascii").split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def pss_of(pid: int | str) -> float:
    """Proportional set size in MB: shared pages count by their share; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return sizes[0] / 1024 if sizes else 0.0
