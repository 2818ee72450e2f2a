"""Where a benchmark runs: a home of its own with a broker, a steady stream, a fleet, a meter.

Problem: figures of two ways compare only on the same broker, topic and cores, and a benchmark
must leave nothing behind. Choice: one temporary home under `$FLEET_HOME/bench` per run; every
group begins at the end of the one topic that is written to all the time, and has the machine
to itself while it is measured; whatever ends the run ends all of its processes and deletes the
home. What it starts carries its id in the environment, and a file in its home says which process
it is; where that was killed with -9, the next benchmark ends what is left and deletes the home.
Cost: groups one after another, and about 10 s to begin; what a killed one left runs on until then.
"""

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import yaml

from benchmarks.figures import seconds_between
from fleet.act.local.local_runtime import LocalRuntime
from fleet.act.standby_pool import StandbyPool
from fleet.broker import Broker
from fleet.clock import Clock
from fleet.demo.coverage import FOLDER_VARIABLE, coverage, read, read_topics, whole_lines
from fleet.demo.measure import Meter, await_lag, begin_at_the_end, require_done
from fleet.demo.producer import OrderStream, order_sender
from fleet.errors import FleetError, Unreachable
from fleet.log.readers.group_log import GroupLog
from fleet.manager.cycle import Fleet
from fleet.model import TopicPartition
from fleet.model.rebalances import RebalanceCounts
from fleet.security import client_config
from fleet.slots import Change
from fleet.system.closing import Closing
from fleet.system.home import read_state, write_state, write_whole
from fleet.system.processes import ProcessId, alive, carrying, end_all, identify
from fleet.worker.events import VARIABLE as EVENTS_VARIABLE

ID_VARIABLE: Final = "FLEET_BENCH_ID"
MARK: Final = "benchmark.json"
SCHEMA: Final = 1
_LEFT_GRACE: Final = 5.0


def homes(home: Path) -> Path:
    """Where the benchmarks of a `$FLEET_HOME` have theirs."""
    return home.absolute() / "bench"


@contextlib.contextmanager
def owned_by_benchmark(home: Path) -> Iterator[None]:
    """The home, one of `homes`, is this process's meanwhile; what others left is ended before."""
    end_leftovers(home.parent)
    name, before = uuid.uuid4().hex, os.environ.get(ID_VARIABLE)
    me = identify(os.getpid())
    assert me is not None
    write_state(home / MARK, {"id": name, "process": me.as_json()}, schema=SCHEMA)
    os.environ[ID_VARIABLE] = name  # every process from here on carries it
    try:
        yield
    finally:
        os.environ.pop(ID_VARIABLE)
        if before is not None:
            os.environ[ID_VARIABLE] = before
        (home / MARK).unlink(missing_ok=True)


def end_leftovers(folder: Path) -> None:
    """End what benchmarks left that were killed, and delete their homes; of others nothing."""
    for mark in sorted(folder.glob(f"*/{MARK}")):
        # One that cannot be read or ended hinders no other.
        with contextlib.suppress(FleetError, OSError, KeyError, TypeError, ValueError):
            state = read_state(mark, schema=SCHEMA)
            if state is None or alive(ProcessId.from_json(state["process"])):
                continue
            for _ in range(2):  # again: a supervisor may have been starting a worker
                end_all(carrying(ID_VARIABLE, str(state["id"])), grace=_LEFT_GRACE)
            Broker(mark.parent).purge()
            shutil.rmtree(mark.parent)


_VERSION: Final = re.compile(r"^VERSION = (\d+)$", re.MULTILINE)


class Sandbox:
    """One home with a declared group, whose entrypoint keeps the journal.

    config: the name of its fleet.yaml, where a home has several. A declaration replaces the one
    before.
    """

    def __init__(self, home: Path, *, module: str, config: str = "fleet.yaml") -> None:
        self.home = home
        self.module = module
        self.config = home / config
        self.code = home / "code" / f"{module}.py"

    def write_code(self, text: str) -> None:
        """Replace the entrypoint's source."""
        write_whole(self.code, text)

    def new_code(self) -> None:
        """Raise the number in its line `VERSION = …`, as its author would: the next plan is a roll.

        FleetError where there is no such line, or more than one.
        """
        text, count = _VERSION.subn(_raised, self.code.read_text(encoding="utf-8"))
        if count != 1:
            raise FleetError(f"{self.code} has {count} lines VERSION = NUMBER, and has to have one")
        self.write_code(text)

    def journal_of(self, group: str) -> Path:
        """The folder to which the group's workers write what they process."""
        return self.home / "journal" / group

    def job(self, group: str, **environ: str) -> dict[str, Any]:
        """What a `worker` section has to say: the code, and where its journal is."""
        return {
            "entrypoint": f"{self.module}:process",
            "python_path": [str(self.code.parent)],
            "env": {FOLDER_VARIABLE: str(self.journal_of(group)), **environ},
        }

    def write_spec(self, cluster: Mapping[str, Any], *groups: Mapping[str, Any]) -> None:
        """Write fleet.yaml: these groups, acted on."""
        spec = {"cluster": dict(cluster), "mode": "act", "fleets": [dict(each) for each in groups]}
        write_whole(self.config, yaml.safe_dump(spec, sort_keys=False))


def _raised(found: re.Match[str]) -> str:
    return f"VERSION = {int(found[1]) + 1}"


def terms(protocol: str) -> dict[str, str]:
    """Keys of a `worker` section: `consumer` (KIP-848), or an assignor of the classic protocol."""
    if protocol == "consumer":
        return {"protocol": "consumer"}
    return {"protocol": "classic", "assignor": protocol}


ACTOR: Final = "benchmarks"
TOPIC: Final = "bench"
_STEADY_SECONDS: Final = 6.0
"""Commits in a steady rhythm, to measure pauses against [27]."""
_GONE_SECONDS: Final = 60.0
_GRACE: Final = 20.0
Say = Callable[[str], None]


class KeepingRuntime(LocalRuntime):
    """A local runtime that can leave workers warm where a change would remove them."""

    keeping = False

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """Remove them, or keep them as standbys."""
        if not self.keeping:
            super().remove(names, grace=grace)


class Ground(Sandbox, Closing):
    """One benchmark's home; a context manager that ends and deletes all of it.

    parent: `$FLEET_HOME`. rate: records per second, over all partitions. ending: called before
    everything is ended, also where it had only half begun. keep: leave the home's files, for
    whoever wants to count again.
    """

    def __init__(
        self,
        *,
        parent: Path,
        partitions: int,
        rate: int,
        clock: Clock,
        say: Say,
        ending: Callable[[], None],
        keep: bool = False,
    ) -> None:
        super().__init__(homes(parent) / uuid.uuid4().hex[:12], module="bench_job")
        self.partitions = partitions
        self.rate = rate
        self.clock = clock
        self.say = say
        self.keep = keep
        self._ending = ending
        self._owned = contextlib.ExitStack()
        self._broker = Broker(self.home)
        self._fleet: Fleet | None = None
        self._stream: OrderStream | None = None
        self._log: GroupLog | None = None
        self._begun: dict[str, dict[TopicPartition, int]] = {}

    # --- files ------------------------------------------------------------------------------

    def log(self, name: str) -> Path:
        """Output of a process."""
        return self.home / f"{name}.log"

    def _events(self, group: str) -> Path:
        return self.home / f"{group}.events"

    # --- beginning and end ------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        self._owned.enter_context(owned_by_benchmark(self.home))
        job = Path(__file__).with_name("journal_job.py")
        self.write_code(job.read_text(encoding="utf-8"))
        status = self._broker.start(say=self.say)
        self.declare("bench", protocol="range", slots=1)
        fleet = self.fleet
        fleet.create_topics()
        self._log = GroupLog(
            client_config(fleet.spec.cluster, fleet.bootstrap, {}), clock=self.clock
        )
        self._stream = OrderStream(
            order_sender(status.bootstrap_servers),
            topic=TOPIC,
            partitions=self.partitions,
            clock=self.clock,
        )
        self._stream.start(self.rate)
        if self.rate:
            self.say(f"{self.rate} records a second into {self.partitions} partitions")

    def close(self) -> None:
        """End every process of this ground and delete its home, unless it is kept."""
        self._ending()
        steps: list[Callable[[], object]] = []
        if self._stream is not None:
            steps.append(self._stream.end)
        if self._fleet is not None:
            fleet = self._fleet
            steps += [lambda: fleet.runtime.down(grace=2.0), fleet.close]
        if self._log is not None:
            steps.append(self._log.close)
        steps += [self._broker.stop if self.keep else self._broker.purge, self._owned.close]
        for step in steps:
            with contextlib.suppress(FleetError, OSError):
                step()
        if self.keep:
            return
        shutil.rmtree(self.home, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.home.parent.rmdir()

    # --- the fleet --------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The fleet as last declared."""
        assert self._fleet is not None
        return self._fleet

    @property
    def runtime(self) -> KeepingRuntime:
        """Returns the runtime of the fleet."""
        assert isinstance(self.fleet.runtime, KeepingRuntime)
        return self.fleet.runtime

    def declare(self, group: str, *, protocol: str, slots: int, **keys: Any) -> None:
        """Write a fleet.yaml with this one group and open it.

        keys: of the group's declaration; `worker` adds to the worker's.
        """
        cluster = {"name": "bench", "bootstrap_servers": "embedded"}
        declared = self._declaration(group, protocol=protocol, slots=slots, **keys)
        self.write_spec(cluster, declared)
        if self._fleet is not None:
            self._fleet.close()
        self._fleet = Fleet.open(self.config, home=self.home, clock=self.clock)
        self._fleet.runtime.close()
        self._fleet.runtime = KeepingRuntime(self.home, cluster="bench", clock=self.clock)

    def _declaration(
        self,
        group: str,
        *,
        protocol: str,
        slots: int,
        worker: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> dict[str, Any]:
        environ = {**self.environment(group), "BENCH_SPARK": "1"}
        told = dict(worker or {})
        if "command" not in told:
            job = {**self.job(group, **environ), "batch": {"max_wait": "500ms"}}
            told = {**job, **terms(protocol), **told}
        return {
            "group": group,
            "topics": [TOPIC],
            "create": {"partitions": self.partitions},
            "worker": told,
            "replicas": {"min": 0, "max": max(slots, self.partitions), "standby": 0},
            "scaling": {"policy": "fixed", "workers": slots, "down_after": "0s"},
            "rollout": {"warm_timeout": "5m"},
            "storm": {"rebalances": 100_000},
            **keys,
        }

    def environment(self, group: str) -> dict[str, str]:
        """Where the group's workers keep their journal and tell their events."""
        return {
            FOLDER_VARIABLE: str(self.journal_of(group)),
            EVENTS_VARIABLE: str(self._events(group)),
        }

    def broker_pids(self) -> list[int]:
        """Of its nodes that run."""
        return [node.pid for node in self._broker.status().nodes if node.pid is not None]

    def worker_pids(self, group: str) -> list[int]:
        """Of the group's workers that run."""
        return [each.pid for each in self.runtime.workers(group) if each.pid is not None]

    def start_group(self, group: str) -> None:
        """Let the group begin where the topic ends now; waits for a new broker's coordinator."""

        def begun() -> bool:
            try:
                self._begun[group] = begin_at_the_end(self.fleet.bootstrap, group, TOPIC)
            except Unreachable:
                return False
            return True

        self.wait(begun, _GONE_SECONDS, f"the coordinator of {group}")

    def apply(self, group: str, wanted: int | None = None) -> Change:
        """Make it so; FleetError where the change does not end well."""
        return require_done(self.fleet.apply(group, wanted=wanted, actor=ACTOR, progress=self.say))

    def steady(self, group: str) -> None:
        """Wait until the group keeps up with the stream, and commits in its rhythm."""
        await_lag(self.fleet, (group,), max(200, 3 * self.rate), clock=self.clock)
        self.clock.sleep(_STEADY_SECONDS)

    def open_only(self, group: str, numbers: Iterable[int]) -> None:
        """Open just these slots; workers that hold others drain and are standbys again."""
        store = self.fleet.store
        wanted = replace(store.targets(group), open=frozenset(numbers), open_at=self.clock.now())
        if store.write_targets(wanted) is None:
            raise FleetError(f"another process writes the slot targets of group {group}")

    @contextlib.contextmanager
    def streaming(self, rate: int) -> Iterator[None]:
        """Streams at another rate inside the block."""
        assert self._stream is not None
        self._stream.rate(rate)
        try:
            yield
        finally:
            self._stream.rate(self.rate)

    def pool(self, group: str) -> StandbyPool:
        """Returns the workers of a group."""
        return StandbyPool(self.runtime, self.fleet.store, group)

    def wait(self, predicate: Callable[[], bool], seconds: float, what: str) -> None:
        """Poll until true; FleetError naming what was awaited."""
        deadline = self.clock.monotonic() + seconds
        while not predicate():
            if self.clock.monotonic() > deadline:
                raise FleetError(
                    f"timed out after {seconds:g} s waiting for {what}; see {self.home}"
                )
            self.clock.sleep(0.1)

    def dismiss(self, group: str) -> None:
        """End all workers of the group, and give its slots up; members leave by themselves."""
        self.runtime.keeping = False
        self.runtime.remove([w.name for w in self.runtime.workers(group)], grace=_GRACE)
        self.wait(lambda: not self.runtime.workers(group), _GONE_SECONDS, f"{group} to end")

    # --- measuring --------------------------------------------------------------------------

    @contextlib.contextmanager
    def measured(self, group: str) -> Iterator[list[RebalanceCounts]]:
        """What the coordinator records meanwhile; the list holds it afterwards."""
        assert self._log is not None
        meter = Meter(log=self._log, clock=self.clock)
        stretch = meter.begin_step("bench", group)
        found: list[RebalanceCounts] = []
        yield found
        found.append(meter.so_far(stretch))

    def account(self, group: str) -> tuple[int, int]:
        """Counts (lost, duplicates) of all that the group committed, by its journal [34]."""
        seen = self.fleet.snapshot([group]).groups[group]
        begun = self._begun[group]
        due = {p.tp: (begun[p.tp], p.committed or begun[p.tp]) for p in seen.partitions}
        journal = read(self.journal_of(group))
        config = client_config(self.fleet.spec.cluster, self.fleet.bootstrap, {})
        held = read_topics(config, [TOPIC])  # after the journal: no row is unknown
        return coverage(journal, group=group, due=due, topic_records=held).lost_and_duplicates

    def events(self, group: str) -> list[tuple[str, str, float]]:
        """(worker, event, time) of everything the group's workers told, in order."""
        told = [json.loads(line) for line in whole_lines(self._events(group))]
        return [(str(e["worker"]), str(e["event"]), float(e["at"])) for e in told]

    def batch_seconds(self, group: str) -> list[float]:
        """How long each batch took, from its start to its commit."""
        return seconds_between(self.events(group), begin="batch", end="committed")
