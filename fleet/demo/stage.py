"""The demo's files: folders, fleet.yaml, the code that is rolled, and leftovers of the last demo.

Problem: the demo starts from nothing and deletes the data of the last demo, in a folder that could
hold a real fleet. Choice: the demo writes a mark first. It refuses a state directory without a
mark that holds a broker or slots. Every process of a demo carries the mark's id in its environment,
so that the next demo finds and stops leftovers, even after kill -9. Cost: Linux only, as all of
Fleet's process handling.
"""

import contextlib
import shutil
import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from fleet.broker import Broker
from fleet.errors import Refused
from fleet.system.home import read_state, write_state, write_whole
from fleet.system.processes import ProcessId, carrying, end_all

SCHEMA: Final = 1
ID_VARIABLE: Final = "FLEET_DEMO_ID"
TOPIC: Final = "orders"
PARTITIONS: Final = 12
GROUP: Final = "orders-enrichment"
BASELINE_GROUP: Final = "orders-baseline"
CLUSTER: Final = "demo"
MODULE: Final = "orders_job"
RECORDS_PER_WORKER: Final = 1_000
_STATE: Final = (
    "broker",
    *("revisions", "spark", "supervisor", "workers"),
    *(f"{n}.db{s}" for n in ("fleet", "samples") for s in ("", "-wal", "-shm")),
)
"""What a running fleet keeps in its state directory."""
_EXTERNAL: Final = ("broker/state.json", "fleet.db")
"""Files that show that a state directory holds a fleet."""
_GROUPS: Final = frozenset({f"{GROUP} of {CLUSTER}", f"{BASELINE_GROUP} of {CLUSTER}"})
ASSIGNORS: Final = ("cooperative-sticky", "range")


@dataclass(frozen=True, slots=True)
class Stage:
    """The folders and files of a demo under one `$FLEET_HOME`."""

    home: Path

    @property
    def folder(self) -> Path:
        """Returns the demo's own folder."""
        return self.home / "demo"

    @property
    def mark(self) -> Path:
        """Returns the file that marks the state directory as a demo's."""
        return self.folder / "mark.json"

    @property
    def config(self) -> Path:
        """Returns the generated fleet.yaml."""
        return self.folder / "fleet.yaml"

    @property
    def code(self) -> Path:
        """Returns the entrypoint's module, a copy that the roll edits."""
        return self.folder / "code" / f"{MODULE}.py"

    @property
    def journal(self) -> Path:
        """Returns the folder in which workers write what they process."""
        return self.folder / "journal"

    @property
    def report(self) -> Path:
        """Returns the file of the machine-readable result."""
        return self.home / "demo-report.json"

    @property
    def dagster(self) -> Path:
        """Returns Dagster's storage (DAGSTER_HOME)."""
        return self.folder / "dagster"

    def log(self, name: str) -> Path:
        """Returns the log file of one of the demo's own processes."""
        return self.folder / f"{name}.log"

    def prepare(self, *, assignor: str) -> str:
        """Deletes the previous demo's data and writes new files; returns the new demo's id.

        Raises Refused if the state directory holds a fleet that is not a demo.
        """
        self._refuse_external()
        self.clear()
        name = uuid.uuid4().hex
        write_state(self.mark, {"id": name}, schema=SCHEMA)
        source = Path(__file__).with_name("orders.py").read_text(encoding="utf-8")
        write_whole(self.code, source)
        self.write_spec(assignor=assignor, baseline=False)
        self.journal.mkdir()
        return name

    def _refuse_external(self) -> None:
        """Refuses another fleet, also one that replaced a demo: it manages other groups."""
        if not self.home.exists():
            return
        if self.mark.exists():
            kept = [f"group {group}" for group in _groups_of(self.home / "fleet.db") - _GROUPS]
        else:
            kept = [name for name in _EXTERNAL if (self.home / name).exists()]
        if kept:
            raise Refused(
                f"the demo would delete the fleet in {self.home} ({', '.join(sorted(kept))}): set "
                "FLEET_HOME to another folder, or delete this folder after `fleet down`"
            )

    def forget(self) -> None:
        """Deletes the demo's own folder, so that the state directory is free again."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_leftovers(self) -> None:
        """Stops all processes of the last demo in this state directory, Dagster included."""
        state = read_state(self.mark, schema=SCHEMA) or {}
        end_all(leftovers(str(state.get("id", ""))), grace=5.0)

    def clear(self) -> None:
        """Stops the processes of a previous demo and deletes its files."""
        if read_state(self.mark, schema=SCHEMA) is None:
            return
        self.end_leftovers()
        Broker(self.home).purge()
        for name in (*_STATE, self.report.name):
            path = self.home / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path != self.mark:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.folder)  # last, because the mark is in it

    def write_spec(self, *, assignor: str, baseline: bool) -> None:
        """Writes fleet.yaml; the second group has workers only if `baseline`."""
        write_whole(self.config, spec_text(self, assignor=assignor, baseline=baseline))

    def new_code(self) -> None:
        """Edits the entrypoint as its author would: another tax, another version."""
        text = self.code.read_text(encoding="utf-8")
        changed = text.replace("VERSION = 1", "VERSION = 2").replace(
            "TAX_PERCENT = 7", "TAX_PERCENT = 19"
        )
        if changed == text:
            raise Refused(f"{self.code} was edited during the demo; start the demo again")
        write_whole(self.code, changed)


def _groups_of(store: Path) -> frozenset[str]:
    """Returns the groups with slots in this store. Raises Refused if it cannot be read."""
    if not store.exists() or not store.stat().st_size:
        return frozenset()
    try:
        with contextlib.closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            held = "SELECT DISTINCT cluster, grp FROM objects WHERE kind = 'targets'"
            rows = db.execute(held) if "objects" in tables else ()
            return frozenset(f"{group} of {cluster}" for cluster, group in rows)
    except sqlite3.Error as error:
        raise Refused(
            f"the demo would delete {store}, which it cannot read ({error}): set FLEET_HOME to "
            "another folder"
        ) from error


def spec_text(stage: Stage, *, assignor: str, baseline: bool) -> str:
    """Renders the demo's fleet.yaml.

    Small batches and the entrypoint's wait limit a worker to about 1,500 records/s. So six workers
    drain a backlog faster than three, on two cores.
    """
    worker: dict[str, object] = {
        "entrypoint": f"{MODULE}:process",
        "python_path": [str(stage.code.parent)],
        "assignor": assignor,
        "batch": {"inline": 1000, "ranges": 1000, "max_wait": "1s", "max_seconds": "5s"},
        "env": {"FLEET_JOURNAL": str(stage.journal), "ORDERS_DELIVERY_SECONDS": "0.5"},
    }
    spec = {
        "cluster": {"name": CLUSTER, "bootstrap_servers": "embedded"},
        "mode": "act",
        "defaults": {
            "owner": "team-orders",
            "topics": [TOPIC],
            "create": {"partitions": PARTITIONS},
            "worker": worker,
            "rollout": {
                "max_parallel": 2,
                "drain_timeout": "20s",
                "canary_batches": 2,
                "bake": "8s",
            },
            "storm": {"rebalances": 20, "window": "10m"},
        },
        "fleets": [
            {
                "group": GROUP,
                "replicas": {"min": 3, "max": 6, "standby": 1},
                "scaling": {
                    "policy": "lag",
                    "records_per_worker": RECORDS_PER_WORKER,
                    "down_after": "5s",
                },
            },
            {
                "group": BASELINE_GROUP,
                "mode": "act" if baseline else "observe",
                "worker": {"membership": "dynamic"},
                "replicas": {"min": 6, "max": 6, "standby": 0},
                "scaling": {"policy": "fixed", "workers": 6},
            },
        ],
    }
    head = "# Written by `fleet demo`; the next demo writes it anew.\n"
    return head + yaml.safe_dump(spec, sort_keys=False, width=100)


def leftovers(name: str) -> tuple[ProcessId, ...]:
    """Returns the running processes of the demo with this id, without the caller."""
    return carrying(ID_VARIABLE, name)
