"""Holds the load that a back-test replays: generated shapes, and series from files.

Problem: a rule that is tuned on one shape fails on the next, and real load is bursty and skewed.
Choice: six generated shapes by seed, and CSV files with one column per partition. A series may be
mixed over more partitions, as the keys of a topic are. Cost: within a step the rate is constant, so
that bursts shorter than a step are spread over it.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from fleet.errors import ConfigError
from fleet.lag.lag_columns import Floats

DAY: Final = 86_400.0
_EVENNESS: Final = 3.0
"""Concentration of the shares; more is more even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeries:
    """Holds the arrival of each partition, and what workers can do about it."""

    name: str
    step: float
    """Seconds of one row."""
    rates: Floats
    """Records per second; a row per step, a column per partition."""
    blocked: tuple[tuple[float, float], ...] = ()
    """(from, until) in seconds: the sink of all workers is stuck."""

    @property
    def seconds(self) -> float:
        """Returns the length."""
        return self.step * len(self.rates)

    @property
    def partitions(self) -> int:
        """Returns the number of partitions."""
        return int(self.rates.shape[1])

    def scaled_to(self, mean: float) -> "LoadSeries":
        """Returns the same load with this mean of records per second over all partitions."""
        now = float(self.rates.sum(axis=1).mean())
        return replace(self, rates=self.rates * (mean / now)) if now else self

    def first(self, seconds: float) -> "LoadSeries":
        """Returns the beginning of the load."""
        return replace(self, rates=self.rates[: max(1, int(seconds // self.step))])


# --- generated shapes --------------------------------------------------------------------------


def _steady(times: Floats, rng: np.random.Generator) -> Floats:
    return np.ones(len(times)) + 0.05 * rng.standard_normal(len(times))


def _daily(times: Floats, rng: np.random.Generator) -> Floats:
    wave = 1.0 - 0.8 * np.cos(2 * np.pi * times / DAY)
    return wave * (1.0 + 0.05 * rng.standard_normal(len(times)))


def _burst(times: Floats, rng: np.random.Generator) -> Floats:
    rate = 0.5 + 0.05 * rng.standard_normal(len(times))
    for start in rng.uniform(0, times[-1], size=max(1, round(4 * times[-1] / DAY))):
        rate[(times >= start) & (times < start + rng.uniform(600, 2_400))] *= rng.uniform(4, 8)
    return rate


_EVEN: Final = 0.0
_SKEW: Final = 1.0
_SHAPES: Final[Mapping[str, tuple[Callable[[Floats, np.random.Generator], Floats], float]]] = {
    "steady": (_steady, _EVEN),
    "daily": (_daily, _EVEN),
    "burst": (_burst, _EVEN),
    "skewed": (_daily, _SKEW),
    "hot-partition": (_daily, _EVEN),
    "stuck-sink": (_daily, _EVEN),
}
SHAPES: Final = tuple(_SHAPES)
"""Names of the generated shapes."""


def shape(
    name: str, *, partitions: int, days: float, mean: float, capacity: float, seed: int
) -> LoadSeries:
    """Generates a load. mean: records/s of the group; capacity: records/s of one worker."""
    rng = np.random.default_rng(seed)
    step = 60.0
    times: Floats = np.arange(round(days * DAY / step), dtype=np.float64) * step
    of_time, skew = _SHAPES[name]
    shares = 1.0 / np.arange(1, partitions + 1) ** skew
    rates = np.outer(np.maximum(of_time(times, rng), 0.0), rng.permutation(shares))
    load = LoadSeries(name=name, step=step, rates=rates).scaled_to(mean)
    if name == "hot-partition":  # more than one worker reads, for an hour of every day
        hot = (times % DAY >= 10 * 3_600) & (times % DAY < 11 * 3_600)
        load.rates[hot, int(rng.integers(partitions))] = 1.2 * capacity
    if name == "stuck-sink":
        noons = np.arange(0.5 * DAY, days * DAY, DAY)
        return replace(load, blocked=tuple((float(at), float(at + 1_800)) for at in noons))
    return load


# --- series from files -------------------------------------------------------------------------


def read_traces(paths: Sequence[Path]) -> LoadSeries:
    """Reads CSV files: a time, then one column per partition with the records of each step.

    Several files stand side by side, row by row. Raises ConfigError that names file and line.
    """
    tables = [_table(path) for path in paths]
    rows = min(len(rates) for _, rates in tables)
    step = tables[0][0]
    for path, (other, _) in zip(paths, tables, strict=True):
        if abs(other - step) > 0.01 * step:
            raise ConfigError(
                f"{path} has a row every {other:g} s, but {paths[0]} every {step:g} s: files that "
                "are read together need the same step"
            )
    columns = np.hstack([rates[:rows] for _, rates in tables])
    name = ", ".join(path.stem for path in paths)
    return LoadSeries(name=name, step=step, rates=columns / step)


def _table(path: Path) -> tuple[float, Floats]:
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    times: list[float] = []
    values: list[list[float]] = []
    for number, cells in enumerate(lines, start=1):
        if not cells or (number == 1 and not _is_time(cells[0])):
            continue
        try:
            row = [float(cell) for cell in cells[1:]]
            times.append(_seconds(cells[0]))
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}; write a time, then numbers") from error
        if not row or min(row) < 0 or not np.isfinite(row).all():
            raise ConfigError(f"{path}:{number}: {cells[1:]} are no numbers of records")
        if values and len(row) != len(values[0]):
            raise ConfigError(
                f"{path}:{number}: has {len(row)} values, the lines before {len(values[0])}"
            )
        values.append(row)
    steps = np.diff(times)
    if len(times) < 3 or not (steps > 0).all():
        raise ConfigError(f"{path} needs at least 3 lines with a time and values, oldest first")
    return float(np.median(steps)), np.array(values)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _is_time(text: str) -> bool:
    try:
        _seconds(text)
    except ValueError:
        return False
    return True


def mixed(load: LoadSeries, *, partitions: int, seed: int) -> LoadSeries:
    """Spreads the columns of a load over partitions, as the keys of a topic are.

    The shares of each column are drawn by seed from a Dirichlet distribution, so that partitions
    are unequal and each has something of every column.
    """
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([_EVENNESS] * partitions, size=load.partitions)
    return replace(load, name=f"{load.name}, mixed", rates=load.rates @ shares)


def from_ends(
    name: str, samples: Mapping[str, tuple[Floats, Floats]], *, step: float = 60.0
) -> LoadSeries:
    """Returns the arrival of partitions from (times, end offsets), interpolated between samples.

    Raises ConfigError if the samples span less than three steps.
    """
    known = {each: pair for each, pair in sorted(samples.items()) if len(pair[0]) > 1}
    start = min((times[0] for times, _ in known.values()), default=0.0)
    end = max((times[-1] for times, _ in known.values()), default=0.0)
    if end - start < 3 * step:
        raise ConfigError(
            f"the history of {name} spans {max(0.0, end - start):.0f} s, which is too short to "
            "replay; run `fleet history sync --follow` to record it"
        )
    grid: Floats = np.arange(start, end, step, dtype=np.float64)
    columns = []
    for times, ends in known.values():
        grown = np.diff(np.interp(grid, times, ends))
        columns.append(np.maximum(grown, 0.0) / step)  # a recreated topic begins anew
    return LoadSeries(name=name, step=step, rates=np.array(columns).T)
