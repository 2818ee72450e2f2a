"""Where the demo plays: folders, fleet.yaml, the code that is rolled, and what was left behind.

Problem: the demo starts from nothing and deletes what the last one left, in a folder where a
real fleet could live. Choice: a mark is the first file the demo writes; a home without it that
holds a broker or slots is somebody's fleet and refused. Every process of a demo carries the
mark's id in its environment, so whatever still runs can be found and ended, even after kill -9
of the demo. Cost: Linux only, as all of Fleet's process handling.
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
ORDINARY_GROUP: Final = "orders-ordinary"
CLUSTER: Final = "demo"
MODULE: Final = "orders_job"
RECORDS_PER_WORKER: Final = 1_000
_STATE: Final = (
    "broker",
    *("revisions", "spark", "supervisor", "workers"),
    *(f"{n}.db{s}" for n in ("fleet", "samples") for s in ("", "-wal", "-shm")),
)
"""What a running fleet keeps in its home."""
_EXTERNAL: Final = ("broker/state.json", "fleet.db")
"""What tells that a fleet lives in a home."""
_GROUPS: Final = frozenset({f"{GROUP} of {CLUSTER}", f"{ORDINARY_GROUP} of {CLUSTER}"})
ASSIGNORS: Final = ("cooperative-sticky", "range")


@dataclass(frozen=True, slots=True)
class Stage:
    """The folders and files of a demo under one `$FLEET_HOME`."""

    home: Path

    @property
    def folder(self) -> Path:
        """All that is the demo's own."""
        return self.home / "demo"

    @property
    def mark(self) -> Path:
        """Says that this home is a demo's."""
        return self.folder / "mark.json"

    @property
    def config(self) -> Path:
        """The generated fleet.yaml."""
        return self.folder / "fleet.yaml"

    @property
    def code(self) -> Path:
        """The entrypoint's module, a copy that is edited for the roll."""
        return self.folder / "code" / f"{MODULE}.py"

    @property
    def journal(self) -> Path:
        """Where workers write what they process."""
        return self.folder / "journal"

    @property
    def report(self) -> Path:
        """The result, for machines."""
        return self.home / "demo-report.json"

    @property
    def dagster(self) -> Path:
        """Dagster's storage (DAGSTER_HOME)."""
        return self.folder / "dagster"

    def log(self, name: str) -> Path:
        """Output of one of the demo's own processes."""
        return self.folder / f"{name}.log"

    def prepare(self, *, assignor: str) -> str:
        """Clear what a previous demo left and set the stage; the new demo's id.

        Raises Refused where the home holds a fleet that no demo made.
        """
        self._refuse_external()
        self.clear()
        name = uuid.uuid4().hex
        write_state(self.mark, {"id": name}, schema=SCHEMA)
        source = Path(__file__).with_name("orders.py").read_text(encoding="utf-8")
        write_whole(self.code, source)
        self.write_spec(assignor=assignor, ordinary=False)
        self.journal.mkdir()
        return name

    def _refuse_external(self) -> None:
        """A fleet may have moved in where a demo was, too: what it manages tells it apart."""
        if not self.home.exists():
            return
        if self.mark.exists():
            kept = [f"group {group}" for group in _groups_of(self.home / "fleet.db") - _GROUPS]
        else:
            kept = [name for name in _EXTERNAL if (self.home / name).exists()]
        if kept:
            raise Refused(
                f"{self.home} holds another fleet ({', '.join(sorted(kept))}), and the demo would "
                "delete it: run the demo with FLEET_HOME set to another folder, or give this one "
                "up with `fleet down --purge`"
            )

    def forget(self) -> None:
        """Delete the demo's own folder: this home is nobody's again."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_left(self) -> None:
        """End processes of this home's last demo, its Dagster too; nothing where there was none."""
        state = read_state(self.mark, schema=SCHEMA) or {}
        end_all(leftovers(str(state.get("id", ""))), grace=5.0)

    def clear(self) -> None:
        """End what still runs of a previous demo and delete what it wrote."""
        if read_state(self.mark, schema=SCHEMA) is None:
            return
        self.end_left()
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

    def write_spec(self, *, assignor: str, ordinary: bool) -> None:
        """Write fleet.yaml; the second group acts only where `ordinary`."""
        write_whole(self.config, spec_text(self, assignor=assignor, ordinary=ordinary))

    def new_code(self) -> None:
        """Change the entrypoint as its author would: another tax, another version."""
        text = self.code.read_text(encoding="utf-8")
        changed = text.replace("VERSION = 1", "VERSION = 2").replace(
            "TAX_PERCENT = 7", "TAX_PERCENT = 19"
        )
        if changed == text:
            raise Refused(f"{self.code} is not the code that the demo began with; start it again")
        write_whole(self.code, changed)


def _groups_of(store: Path) -> frozenset[str]:
    """Whose slots a home's store holds; none where it holds none. Raises Refused."""
    if not store.exists() or not store.stat().st_size:
        return frozenset()
    try:
        with contextlib.closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            rows = db.execute("SELECT cluster, grp FROM targets") if "targets" in tables else ()
            return frozenset(f"{group} of {cluster}" for cluster, group in rows)
    except sqlite3.Error as error:
        raise Refused(
            f"{store} cannot be read ({error}), so it is not known whose it is, and the demo would "
            "delete it: run the demo with FLEET_HOME set to another folder"
        ) from error


def spec_text(stage: Stage, *, assignor: str, ordinary: bool) -> str:
    """The demo's fleet.yaml.

    Small batches and the entrypoint's wait make a worker's capacity about 1,500 records/s, so that
    a backlog is real and six workers drain it faster than three, on two cores.
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
                "group": ORDINARY_GROUP,
                "mode": "act" if ordinary else "observe",
                "worker": {"membership": "dynamic"},
                "replicas": {"min": 3, "max": 3, "standby": 0},
                "scaling": {"policy": "fixed", "workers": 3},
            },
        ],
    }
    head = "# Written by `fleet demo`; the next demo writes it anew.\n"
    return head + yaml.safe_dump(spec, sort_keys=False, width=100)


def leftovers(name: str) -> tuple[ProcessId, ...]:
    """Living processes of the demo with this id, other than the caller."""
    return carrying(ID_VARIABLE, name)
