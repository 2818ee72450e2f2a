"""Kafka's own command-line tools, parsed: the judge that shares no code with Fleet.

DumpLogSegments reads the segments of `__consumer_offsets` from the broker's disk and decodes
them with Kafka's generated classes; ConsumerGroupCommand is what an operator would run.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.broker import Broker, NodeStatus
from tests.support.tool_server import run_tool

DUMP = "org.apache.kafka.tools.DumpLogSegments"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_RECORD = re.compile(r"\| offset: (\d+) CreateTime: (-?\d+) .*? key: ")
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Record:
    """One record of `__consumer_offsets`; timestamp in ms; value None is a tombstone."""

    offset: int
    timestamp: int
    type: int
    key: dict[str, Any]
    version: int | None
    value: dict[str, Any] | None

    @property
    def group(self) -> str:
        """The group it is about."""
        return str(self.key["group"] if "group" in self.key else self.key["groupId"])


def dump_group_records(broker: Broker, group: str) -> list[Record]:
    """Every record about `group`, in offset order; [] where the topic does not exist yet."""
    return dump_records(broker, [group])


def dump_records(broker: Broker, groups: Sequence[str]) -> list[Record]:
    """The same for several groups, by one run of the tool; in offset order for each of them."""
    folders = {folder for group in groups if (folder := _partition_folder(broker, group))}
    segments = ",".join(
        str(path) for each in sorted(folders) for path in sorted(each.glob("*.log"))
    )
    if not segments:
        return []
    found = parse_dump(run_tool(DUMP, "--offsets-decoder", "--files", segments))
    return [record for record in found if record.group in groups]


def generations(broker: Broker, group: str) -> list[int]:
    """The generation of each classic group record in order, rewrites of the same one included."""
    return _field(broker, group, 2, "generation")


def group_epochs(broker: Broker, group: str) -> list[int]:
    """KIP-848: each group epoch (type 3) in order."""
    return _field(broker, group, 3, "epoch")


def assignment_epochs(broker: Broker, group: str) -> list[int]:
    """KIP-848: each target assignment's epoch (type 6) in order: one per new assignment."""
    return _field(broker, group, 6, "assignmentEpoch")


def rebalances(broker: Broker, group: str) -> int:
    """Completed generations of a classic group, or under KIP-848 computed assignments."""
    return count_rebalances(dump_group_records(broker, group))


def count_rebalances(records: Sequence[Record]) -> int:
    """The same, of one group's records."""
    found = {
        record.value["generation" if record.type == 2 else "assignmentEpoch"]
        for record in records
        if record.type in {2, 6} and record.value is not None
    }
    return len(found - {0})


def _field(broker: Broker, group: str, kind: int, name: str) -> list[int]:
    return [
        int(record.value[name])
        for record in dump_group_records(broker, group)
        if record.type == kind and record.value is not None
    ]


def parse_dump(text: str) -> list[Record]:
    """DumpLogSegments' output with --offsets-decoder; control records carry no key and are left."""
    records = []
    for line in text.splitlines():
        match = _RECORD.match(line)
        if match is None:
            continue
        key, end = _JSON.raw_decode(line, match.end())
        payload = line[end:].removeprefix(" payload: ")
        value = None if payload == "<DELETE>" else json.loads(payload)
        records.append(
            Record(
                offset=int(match[1]),
                timestamp=int(match[2]),
                type=int(key["type"]),
                key=key["data"],
                version=None if value is None else int(value["version"]),
                value=None if value is None else value["data"],
            )
        )
    return records


def consumer_group_command(broker: Broker, *args: str) -> list[dict[str, str]]:
    """Run ConsumerGroupCommand on the embedded broker; a described table as rows by column name.

    E.g. `("--describe", "--group", g, "--members", "--verbose")`. A group that is unknown or
    without members gives []. `--list` gives rows with the one column GROUP.
    """
    servers = broker.status().bootstrap_servers
    printed = run_tool(GROUPS, "--bootstrap-server", servers, *args)
    if "--list" in args:
        return [{"GROUP": line} for line in printed.splitlines() if line]
    return parse_table(printed)


def parse_table(text: str) -> list[dict[str, str]]:
    """The tables of ConsumerGroupCommand; its remarks (`Error: ...`, `Warning: ...`) are left."""
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    for line in text.splitlines():
        # The coordinator is one column of two words: 127.0.0.1:9092  (1).
        cells = re.sub(r"\s+\((\d+|ID)\)", r"(\1)", line).split()
        if cells[:1] == ["GROUP"]:
            columns = cells
        elif columns and len(cells) == len(columns):
            rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def partition_of(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds `group`: Java's String.hashCode."""
    code = 0
    units = group.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


def _partition_folder(broker: Broker, group: str) -> Path | None:
    """On the node whose copy is longest: the leader's, or an equal one."""
    folders = [folder for node in broker.status().nodes if (folder := _folder_on(node, group))]
    return max(folders, key=_size, default=None)


def _folder_on(node: NodeStatus, group: str) -> Path | None:
    count = len(list(node.data.glob("__consumer_offsets-*")))
    folder = node.data / f"__consumer_offsets-{partition_of(group, count)}" if count else None
    return folder if folder is not None and folder.is_dir() else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))
