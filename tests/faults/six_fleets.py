"""A fleet whose evidence is not on its own disk, and what its faults are judged by."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleet.demo.coverage import JournalEntry
from tests.support.kafka_tools import Record
from tests.support.workshop import Workshop

LEASE = 3.0
BATCH = 100
WAYS: dict[str, dict[str, str]] = {
    "range": {"assignor": "range"},
    "cooperative": {"assignor": "cooperative-sticky"},
    "consumer": {"protocol": "consumer"},
    "range, dynamic": {"assignor": "range", "membership": "dynamic"},
    "cooperative, dynamic": {"assignor": "cooperative-sticky", "membership": "dynamic"},
    "consumer, dynamic": {"protocol": "consumer", "membership": "dynamic"},
}


class FaultShop(Workshop):
    """A workshop whose evidence is not on its own disk."""

    def __init__(self, home: Path, place: Path, bootstrap: str, group: str, **worker: Any) -> None:
        super().__init__(home, bootstrap, group, **worker)
        self.place = place
        self.journal = place / "journal"
        self.letters = f"{group}-letters"
        terms: dict[str, Any] = {
            "batch": {"inline": BATCH, "max_wait": "300ms", **worker.get("batch", {})},
            "dead_letter_topic": self.letters,
            "entrypoint_failure_timeout": "60s",
            "env": {
                "FLEET_JOURNAL": str(self.journal),
                "FLEET_EVENTS": str(place / "events"),
                "WEATHER": str(place),
            },
        }
        if worker.get("protocol") != "consumer":  # whose heartbeat is the broker's
            terms["heartbeat_interval"] = "1s"
        self.declare(worker=terms, runtime={"kind": "local", "lease": f"{LEASE:g}s"})

    def has_standby(self) -> bool:
        """A warm worker that lives and holds no slot."""
        with self.fleet() as fleet:
            owners = {s.owner for s in fleet.slots(self.group)}
            running = {w.name for w in fleet.workers(self.group) if w.running}
            warm = {r.worker for r in fleet.reports(self.group) if r.phase == "standby"}
        return bool((warm & running) - owners)

    def events(self) -> list[dict[str, Any]]:
        """All that the workers told."""
        path = self.place / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


def members(records: Sequence[Record]) -> frozenset[str]:
    """Ids of those who are members at the end of a group's records, classic or KIP-848."""
    found: set[str] = set()
    for record in records:
        if record.type == 2:
            listed = (record.value or {}).get("members") or ()
            found = {str(member["memberId"]) for member in listed}
        elif record.type == 5:
            member = str(record.key["memberId"])
            (found.discard if record.value is None else found.add)(member)
    return frozenset(found)


def is_unclean(event: dict[str, Any]) -> bool:
    """A slot given up or a batch over without its commit, or an end by an error."""
    kind = event["event"]
    return (
        kind == "void"
        or (kind == "released" and not event["clean"])
        or (kind == "exit" and event["code"] != 0)
    )


def biggest(entries: Sequence[JournalEntry]) -> int:
    """Most records that one worker was called for at one moment."""
    calls: dict[tuple[str, float], int] = {}
    for entry in entries:
        key = (entry.worker, entry.at)
        calls[key] = calls.get(key, 0) + entry.records
    return max(calls.values(), default=0)


@contextlib.contextmanager
def disk_of_its_own(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small tmpfs; root only."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "none", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
