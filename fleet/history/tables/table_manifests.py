"""What the tables consist of: numbered manifests, the latest of which is the truth.

Problem: a batch writes many files, by many tasks, and may be killed between any two of them.
Choice: files count only once a manifest lists them. A manifest is the whole list (files of all
tables, positions in the offsets topic, files of the replay's state), written as one new file
`manifests/<number>.json`; the highest number is what there is. A batch that was killed left
files that no manifest names, and is done again from the positions of the last one: no row is
lost or doubled. Compaction and retention are manifests too. Cost: every batch writes the whole
list again (some 100 bytes a file; compaction keeps it at hundreds of files).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fleet.errors import FleetError, SchemaTooNew
from fleet.history.tables.table_folder import TableFolder

SCHEMA: Final = 3
"""1: columns `group`, `at` and others, files below OLD; 2: as they are now; 3: with `stable`."""
OLD: Final = "data/"
FOLDER: Final = "manifests"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file of one table. `day` is the UTC day of its rows, "" where it has none."""

    name: str
    table: str
    day: str
    rows: int
    bytes: int
    every: int = 0
    """Seconds of which it holds one row of a partition (fleet.history.thinning); 0: all rows."""

    @property
    def old(self) -> bool:
        """Whether it is of the first layout: compaction brings it into the present one."""
        return self.name.startswith(OLD) and not self.table.startswith("_")

    def as_json(self) -> list[Any]:
        """A short row: there are many."""
        return [self.name, self.table, self.day, self.rows, self.bytes, self.every]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> "DataFile":
        """The same back."""
        name, table, day, rows, size, *every = row
        return cls(
            name=str(name),
            table=str(table),
            day=str(day),
            rows=int(rows),
            bytes=int(size),
            every=int(every[0]) if every else 0,
        )


class Led(NamedTuple):
    """A partition's leader epoch, and where and when (ms) the last change of it was seen."""

    epoch: int
    offset: int = -1
    """-1: it is the first that was ever seen, and no change."""
    timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tables at one moment.

    `positions`: next offset to read per partition of the offsets topic. `lost`: stretches that
    were gone before they were read, [partition, from, to). `began` is when the tables were made.
    """

    number: int
    cluster: str
    at: float
    what: str
    """batch | look | polled | compaction."""
    positions: Mapping[int, int] = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topic id → name, as the commits told it."""
    lost: tuple[tuple[int, int, int], ...] = ()
    led: Mapping[int, Led] = field(default_factory=dict)
    """Who leads each partition of the offsets topic, and so coordinates its groups."""
    began: float = 0.0
    since: Mapping[int, int] = field(default_factory=dict)
    """Where each partition ended when recording it began: what is missing behind that, was lost."""
    stable: Mapping[int, int] = field(default_factory=dict)
    """Up to where commits in transactions are taken, of partitions where that is before their
    position: an open transaction begins there."""
    behind: int = 0
    """Offsets that were there to be read when this was written, and were not."""

    def of(self, table: str) -> tuple[DataFile, ...]:
        """The files of one table, in the order in which they were written."""
        return tuple(each for each in self.files if each.table == table)

    def old(self) -> frozenset[str]:
        """Tables of which some files are of the first layout."""
        return frozenset(each.table for each in self.files if each.old)

    def as_bytes(self) -> bytes:
        """As it is stored."""
        state = {
            "schema": SCHEMA,
            "number": self.number,
            "cluster": self.cluster,
            "at": self.at,
            "what": self.what,
            "began": self.began,
            "behind": self.behind,
            "positions": {str(p): offset for p, offset in sorted(self.positions.items())},
            "since": {str(p): offset for p, offset in sorted(self.since.items())},
            "stable": {str(p): offset for p, offset in sorted(self.stable.items())},
            "lost": [list(each) for each in self.lost],
            "led": {str(p): list(each) for p, each in sorted(self.led.items())},
            "topics": dict(sorted(self.topics.items())),
            "files": [each.as_json() for each in self.files],
        }
        return json.dumps(state, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> "Manifest":
        """Read back. Raises SchemaTooNew, or FleetError where it is no manifest."""
        try:
            state = json.loads(data)
            schema = int(state["schema"])
        except (ValueError, KeyError, TypeError) as error:
            raise FleetError(f"{where} is no manifest of a history ({error})") from error
        if schema > SCHEMA:
            raise SchemaTooNew(
                f"{where} was written with schema {schema}, this version reads up to {SCHEMA}: "
                "use the newer fleet that wrote it"
            )
        return cls(
            number=int(state["number"]),
            cluster=str(state["cluster"]),
            at=float(state["at"]),
            what=str(state["what"]),
            began=float(state["began"]),
            behind=int(state.get("behind", 0)),
            positions={int(p): int(offset) for p, offset in state["positions"].items()},
            since={int(p): int(offset) for p, offset in state.get("since", {}).items()},
            stable={int(p): int(offset) for p, offset in state.get("stable", {}).items()},
            lost=tuple((int(p), int(a), int(b)) for p, a, b in state["lost"]),
            led={int(p): Led(*map(int, each)) for p, each in state.get("led", {}).items()},
            topics={str(k): str(v) for k, v in state["topics"].items()},
            files=tuple(DataFile.from_json(row) for row in state["files"]),
        )


def name_of(number: int) -> str:
    """Where the manifest of a number is."""
    return f"{FOLDER}/{number:012d}.json"


def numbers(place: TableFolder) -> list[int]:
    """The numbers there are, in order."""
    names = (each.name.rpartition("/")[2] for each in place.files(FOLDER))
    return sorted(int(name[:-5]) for name in names if name.endswith(".json"))


def read_manifest(place: TableFolder, number: int) -> Manifest | None:
    """One manifest; None where it was forgotten meanwhile."""
    name = name_of(number)
    data = place.read(name)
    return None if data is None else Manifest.from_bytes(data, where=f"{place}/{name}")


def latest(place: TableFolder) -> Manifest | None:
    """What the tables are now; None where there are none yet."""
    while known := numbers(place):
        found = read_manifest(place, known[-1])
        if found is not None:
            return found
    return None
