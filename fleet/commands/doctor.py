"""`fleet doctor`: checks the machine, fleet.yaml, its cluster and its workers, and names fixes.

A part is checked only if what it needs was found: a cluster that does not answer is one FAIL, not
ten. A check yields findings; a FleetError in it is one more (`guarded`). Checks only read. A check
of an unfinished change waits one lease at most.
"""

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fleet.broker.jars import KAFKA, damage, find_java
from fleet.commands.answers import as_answer
from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, output_option
from fleet.errors import CodeElsewhere, ConfigError, FleetError, Unreachable
from fleet.extras import EXTRAS, is_installed, pip_line
from fleet.model import Finding, Severity, fail, ok, warn
from fleet.slots import ChangeState
from fleet.system.home import cache_home, fleet_home, make_home
from fleet.text import duration, few, plural, visible

if TYPE_CHECKING:
    from fleet.config.spec import FleetSpec
    from fleet.lag.snapshot import Snapshot
    from fleet.manager.cycle import Fleet
    from fleet.slots import Slot


_LEAST_BYTES: Final = 500_000_000
_COMFORT_BYTES: Final = 3_000_000_000


Check = Callable[[], Iterator[Finding]]


def guarded(check: str, examine: Check) -> list[Finding]:
    """Returns the findings of a check; a FleetError in it is one more FAIL."""
    found: list[Finding] = []
    try:
        found.extend(examine())
    except FleetError as error:
        found.append(fail(check, str(error)))
    return found


def java(*, needed: bool) -> Iterator[Finding]:
    """Checks Java 17 or newer, which Spark and the embedded broker need."""
    try:
        yield ok("java", f"Java at {find_java(os.environ)}")
    except FleetError as error:
        if needed:
            raise
        yield warn(
            "java", str(error), "only workers and the embedded broker on this machine need it"
        )


def jars(*, embedded: bool) -> Iterator[Finding]:
    """Checks that the embedded broker's jars exist, or can be fetched at its first start."""
    if not embedded:
        yield ok("jars", "not needed: the cluster is not the embedded one")
        return
    named = os.environ.get("FLEET_KAFKA_LIBS")
    libs = Path(named) if named else cache_home() / f"kafka-{KAFKA}"
    if named:
        found = sorted(libs.glob("kafka_2.13-*.jar"))
        if found:
            yield ok("jars", f"{found[0].name} in {libs} (FLEET_KAFKA_LIBS)")
        else:
            yield fail(
                "jars",
                f"FLEET_KAFKA_LIBS={libs} holds no kafka_2.13-*.jar",
                "set it to the libs/ folder of a Kafka distribution, or unset it",
            )
    elif not libs.exists():
        yield warn(
            "jars",
            f"Kafka {KAFKA} is not in {libs} yet",
            "the first `fleet dev broker start` fetches 45 MB from Maven Central; "
            "without network, set FLEET_KAFKA_LIBS",
        )
    elif (wrong := damage(libs)) is not None:
        yield warn(
            "jars", f"{libs}: {wrong}", "the next `fleet dev broker start` fetches them again"
        )
    else:
        yield ok("jars", f"Kafka {KAFKA} in {libs}")


def disk(home: Path) -> Iterator[Finding]:
    """Checks that $FLEET_HOME can be written and has free space."""
    folder = next(path for path in (home, *home.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        yield fail("disk", f"cannot write {folder}", "make it writable, or set FLEET_HOME")
        return
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:.1f} GB free at {home}"
    if free < _LEAST_BYTES:
        yield fail("disk", found, "free at least 0.5 GB, or set FLEET_HOME to another disk")
    elif free < _COMFORT_BYTES:
        yield warn("disk", found, "the embedded broker and Spark need 3 GB")
    else:
        yield ok("disk", found)


def home() -> Iterator[Finding]:
    """Checks that the state directory can be written, or created by the next command."""
    folder = fleet_home()
    if folder.exists():
        yield ok("home", f"{make_home(folder)} can be written")
    elif not os.access(next(each for each in folder.parents if each.exists()), os.W_OK):
        yield fail("home", f"cannot create {folder}", "set FLEET_HOME to a folder of yours")


def packages(*, needed: bool) -> Iterator[Finding]:
    """Checks PySpark, which workers need, and Dagster, which no command needs."""
    lacks = fail if needed else warn
    for module, without, tell in (
        ("pyspark", "workers and the embedded broker need it", lacks),
        ("dagster", "schedules, checks and the history of runs need it", warn),
    ):
        if is_installed(module):
            yield ok(module, "installed")
        else:
            yield tell(module, f"not installed: {without}", pip_line(EXTRAS[module]))


_COLOURS: Final = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "red"}


@click.command(epilog="Example:  fleet doctor -o json | jq '.checks[] | select(.level != \"OK\")'")
@output_option
@common
def doctor(invocation: Invocation, *, output: str) -> None:
    """Check what Fleet needs, and name the fix.

    Checks this machine, fleet.yaml if it exists, the cluster that it names, and the workers, slots
    and changes. Changes nothing. Exit code 1 if a check FAILs.
    """
    findings = examine(invocation)
    if output == "json":
        click.echo(json.dumps(as_json(findings), indent=2))
    else:
        for finding in findings:
            _print(finding)
    if any(finding.level is Severity.FAIL for finding in findings):
        click.get_current_context().exit(1)


def examine(invocation: Invocation) -> list[Finding]:
    """Returns all findings, machine first; the cluster only if the file loads."""
    path = invocation.path()
    needed = _runs_here(path)
    found = [
        ok("python", f"Python {platform.python_version()}"),
        *guarded("java", lambda: java(needed=needed)),
    ]
    found += guarded("home", home) + guarded("disk", lambda: disk(fleet_home()))
    found += guarded("packages", lambda: packages(needed=needed))
    if not path.is_file():
        found += guarded("jars", lambda: jars(embedded=True))
        remedy = "write one with `fleet init --bootstrap HOST:PORT`, or name another with --config"
        return [*found, Finding("config", Severity.WARN, f"there is no {path}", remedy)]

    try:
        return found + examine_fleet(invocation)
    except ConfigError as error:
        return [*found, Finding("config", Severity.FAIL, str(error), f"correct {path}")]


def _runs_here(path: Path) -> bool:
    """Tells whether fleet.yaml runs a broker or workers on this machine; False if unreadable."""
    from fleet.config.load import load

    try:
        spec = load(path, os.environ)
    except ConfigError:
        return False
    workers = [each for each in spec.fleets if each.worker is not None]
    embedded = spec.cluster.bootstrap_servers == "embedded"
    return embedded or any(each.runtime.kind == "local" for each in workers)


def as_json(findings: list[Finding]) -> dict[str, object]:
    """Returns the JSON of `fleet doctor -o json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": all(finding.level is not Severity.FAIL for finding in findings),
        "checks": [{**as_answer(each), "remedy": each.remedy or None} for each in findings],
    }


def _print(finding: Finding) -> None:
    level = click.style(f"{finding.level.value:4}", fg=_COLOURS[finding.level])
    click.echo(f"{level}  {finding.check:<14} {visible(finding.found)}")
    if finding.remedy:
        click.echo(f"      {'':<14} → {visible(finding.remedy)}")


_POLL_SECONDS = 0.5
"""Seconds between two reads of the leases of unfinished changes."""


def examine_fleet(invocation: Invocation) -> list[Finding]:
    """Returns findings about the file, the cluster and the workers. Raises ConfigError."""
    path, spec = invocation.existing_path(), invocation.spec()
    embedded = spec.cluster.bootstrap_servers == "embedded"
    found = [
        ok("config", f"{path}: cluster {spec.cluster.name}, {plural(len(spec.fleets), 'group')}")
    ]
    found += guarded("jars", lambda: jars(embedded=embedded))
    found += guarded("entrypoints", lambda: entrypoints(spec))
    found += guarded("scaling", lambda: external_numbers(spec))
    try:
        fleet = invocation.open()
    except Unreachable as error:
        remedy = "fleet up" if embedded else "check cluster.bootstrap_servers and the network"
        return [
            *found,
            Finding("broker", Severity.WARN if embedded else Severity.FAIL, str(error), remedy),
        ]
    with fleet:
        return found + _cluster(fleet)


def entrypoints(spec: "FleetSpec") -> Iterator[Finding]:
    """Checks that the code of each declared worker can be found."""
    from fleet.system.code import code_digest, examine_entrypoint, lies_beside

    declared = [group for group in spec.fleets if group.worker is not None]
    for group in declared:
        try:
            code_digest(group)
            examine_entrypoint(group)
        except CodeElsewhere as error:
            yield warn(
                "entrypoint", str(error), "workers run the code published with these settings"
            )
        except FleetError as error:
            yield fail("entrypoint", str(error))
        else:
            beside = lies_beside(group, Path.cwd())
            if beside is not None and group.runtime.kind == "kubernetes":
                yield warn(
                    "entrypoint",
                    f"{group.group}: {beside} is in this folder, but not in worker.python_path",
                    "write python_path: [.] under worker, unless the image has it too",
                )
    if declared:
        yield ok("entrypoints", f"{plural(len(declared), 'group')} with a worker")


def external_numbers(spec: "FleetSpec") -> Iterator[Finding]:
    """Asks once for the number of each policy external."""
    from fleet.clock import SystemClock
    from fleet.config.spec import ExternalScaling
    from fleet.manager.external_number import ExternalNumbers

    numbers = ExternalNumbers(os.environ, clock=SystemClock())
    entries = enumerate(spec.exporter.wanted_members)
    policies = [(each.group, each.scaling) for each in spec.fleets]
    policies += [(f"exporter.wanted_members[{n}]", each.scaling) for n, each in entries]
    for name, policy in policies:
        if not isinstance(policy, ExternalScaling):
            continue
        login = policy.authorization_env
        if login and not os.environ.get(login):
            yield warn(
                "scaling",
                f"{name}: not asked for its number: environment variable {login} is not set",
                "set it here, and for every process that plans; without a number the group keeps "
                "its size",
            )
            continue
        found = numbers.ask(policy)
        why, _, hint = found.why.partition("; ")
        if found.wanted is None:
            yield warn(
                "scaling",
                f"{name}: no number from {found.source}: {why}",
                f"{hint or 'check scaling.url'}; without a number the group keeps its size",
            )
        else:
            yield ok("scaling", f"{name}: {found.source} asks for {found.wanted}")


def _cluster(fleet: "Fleet") -> list[Finding]:
    """Checks Kafka first, then Fleet's own state in any case."""
    seen: list[Snapshot] = []
    found = guarded("broker", lambda: groups_readable(fleet, seen))
    if seen:
        found += guarded("topics", lambda: topics(fleet, seen[0]))
        found += guarded("offsets log", lambda: receipts_verifiable(fleet, seen[0]))
        found += guarded("batched leave", lambda: leave_possible(fleet))
        found += guarded("acls", lambda: missing_acls(fleet))
    found += guarded("workers", lambda: workers(fleet))
    found += guarded("runtime", fleet.runtime.examine)
    found += guarded("slots", lambda: slots(fleet))
    found += guarded("changes", lambda: changes(fleet))
    return found


def groups_readable(fleet: "Fleet", seen: "list[Snapshot]") -> Iterator[Finding]:
    """Checks that the broker answers, and that its groups can be listed and described."""
    snapshot = fleet.snapshot()
    seen.append(snapshot)
    yield ok(
        "broker",
        f"{fleet.bootstrap}: {plural(len(snapshot.groups), 'group')}, "
        f"{plural(len(snapshot.topics), 'topic')} in {duration(snapshot.took)}",
    )
    for problem in snapshot.problems:
        yield warn("groups", problem, "allow Describe on groups and topics")


def topics(fleet: "Fleet", snapshot: "Snapshot") -> Iterator[Finding]:
    """Checks that the topics of every group with a worker exist."""
    from fleet.decide.scaling import missing_topics, subscribed_topics, unmatched_entries
    from fleet.decide.state_snapshot import deleted_partitions

    specs = [each for each in fleet.spec.fleets if each.worker is not None]
    hidden = {name for kind, name in fleet.undescribed(specs, snapshot) if kind == "topic"}
    for spec in specs:
        there = subscribed_topics(snapshot.topics, spec)
        absent = missing_topics(snapshot.topics, spec)
        missing = [name for name in absent if name not in hidden]
        if absent and not missing:
            continue  # not missing: the check of groups names the ACL
        if missing and spec.create is None:
            yield fail(
                "topics",
                f"{', '.join(missing)} of {spec.group} does not exist",
                "create it, or write create: {partitions: 12} under the group",
            )
        elif missing:
            yield ok("topics", f"{spec.group}: `fleet up` creates {', '.join(missing)}")
        elif unmatched_entries(snapshot.topics, spec):
            yield warn(
                "topics",
                f"no topic matches {' or '.join(spec.topics)} of {spec.group} yet",
                "its slots open with the first plan after a topic is created",
            )
        else:
            count = f"{plural(len(there), 'topic')} with {plural(sum(there.values()), 'partition')}"
            yield ok("topics", f"{spec.group} reads {count}")
        seen = snapshot.groups.get(spec.group)
        owned = [deleted_partitions(m, snapshot.topics) for m in seen.members] if seen else []
        if gone := sorted(frozenset().union(*owned)):
            yield warn(
                "topics",
                f"members of {spec.group} own {few(list(map(str, gone)))}, which does not exist: "
                "the topic was recreated with fewer partitions, and a sticky assignor keeps "
                "assigning them",
                f"nothing is read of them; `fleet apply {spec.group}` makes a member that owns "
                "nothing else join again",
            )


def receipts_verifiable(fleet: "Fleet", snapshot: "Snapshot") -> Iterator[Finding]:
    """Checks that `__consumer_offsets` can be read, which receipts count rebalances from."""
    group = next(iter(snapshot.groups), "fleet-doctor")
    if not snapshot.groups:
        yield ok("offsets log", "not checked: there is no consumer group yet")
    elif fleet.rebalances(group, window=1.0) is None:
        yield warn(
            "offsets log",
            "cannot read __consumer_offsets: receipts will be unverified",
            "allow Read on topic __consumer_offsets; some managed Kafka services cannot",
        )
    else:
        yield ok("offsets log", "can read __consumer_offsets: receipts are verified")


def leave_possible(fleet: "Fleet") -> Iterator[Finding]:
    """Checks that kafka-python can log in: only it sends one leave for several members.

    Any answer will do: an older broker refuses the request after a successful login.
    """
    from fleet.act.kafka import GroupAdmin
    from fleet.security import kafka_python_config

    config = kafka_python_config(fleet.spec.cluster, fleet.bootstrap, os.environ)
    with GroupAdmin(bootstrap=fleet.bootstrap, kafka_python_config=config) as admin:
        try:
            admin.group_setting("fleet-doctor", "consumer.session.timeout.ms")
        except FleetError as error:
            if isinstance(error, Unreachable) or "authentication" in str(error).lower():
                yield warn(
                    "batched leave",
                    str(error),
                    "check cluster.security; without it N workers leave in N rebalances",
                )
                return
    yield ok("batched leave", "kafka-python can log in")


def missing_acls(fleet: "Fleet") -> Iterator[Finding]:
    """Checks the least ACLs of each group's mode against those of this login (KIP-430)."""
    declared = fleet.spec.fleets
    lacking = fleet.missing_grants(declared)
    for grant in lacking:
        yield warn(
            "acls",
            f"this login lacks {grant}: {grant.acl.without}",
            f"kafka-acls --add --allow-principal User:NAME --operation {grant.operation} "
            f"--{grant.resource} {grant.name}",
        )
    if declared and not lacking:
        yield ok(
            "acls", f"this login has all that the modes of {plural(len(declared), 'group')} need"
        )


def workers(fleet: "Fleet") -> Iterator[Finding]:
    """Checks that the wanted processes run, and no others."""
    processes = fleet.workers()
    wanted = [worker for worker in processes if worker.wanted]
    running = sum(worker.running for worker in wanted)
    if not wanted:
        yield ok("workers", "none are wanted yet")
    elif running < len(wanted):
        down = next(worker for worker in wanted if not worker.running)
        why = f": {down.exit_reason}" if down.exit_reason else ""
        yield warn(
            "workers",
            f"{running} of {len(wanted)} run; {down.name} does not run{why}",
            _log_of(fleet, down.name),
        )
    else:
        yield ok("workers", f"{running} run")
    for group, count in fleet.undeclared().items():
        yield warn(
            "orphans",
            f"{plural(count, 'worker')} of group {group}, for which fleet.yaml declares none",
            f"declare it again; to stop it, run `fleet scale {group} 0 --pin 1h` before you "
            "remove it; `fleet down` stops all",
        )


def _log_of(fleet: "Fleet", worker: str) -> str:
    runtime = fleet.spec.runtime
    if runtime.kind == "kubernetes":
        where = f"kubectl -n {runtime.namespace} logs {worker} --previous"
        return f"{where}; the kubelet restarts it"
    return f"its log is in {fleet.home}; the supervisor restarts it"


def slots(fleet: "Fleet") -> Iterator[Finding]:
    """Checks for owners that do not run, quarantined slots and stopped partitions."""
    running = {worker.name for worker in fleet.workers() if worker.running}
    owned = [slot for f in fleet.spec.fleets for slot in fleet.slots(f.group) if slot.owner]
    doubtful = [slot for slot in owned if slot.owner not in running]
    silent = _silent(fleet, doubtful) if doubtful else []
    yield ok("slots", f"{len(owned) - len(silent)} owned by running workers")
    for slot in silent:
        lease = fleet.group(slot.group).runtime.lease
        yield warn(
            "slots",
            f"slot {slot.number} of {slot.group} is owned by {slot.owner}, which does not run",
            f"a standby takes it after {lease:g} s; `fleet up` starts a standby",
        )
    for spec in fleet.spec.fleets:
        for number in sorted(fleet.targets(spec.group).quarantined):
            yield warn(
                "slots",
                f"slot {number} of {spec.group} is quarantined: an external process uses its "
                "instance id",
                f"find and stop the member {spec.group}-{number}, then run "
                f"`fleet slot reopen {spec.group} {number}`",
            )
        for mark in fleet.store.stopped_partitions(spec.group):
            yield warn(
                "partitions",
                f"{mark.tp} of {spec.group} is stopped at offset {mark.offset}: {mark.error}",
                "a roll does not help: commit an offset while the group is down, or set "
                "worker.on_truncated: skip"
                if mark.is_log_cause
                else "correct the entrypoint, or the setting that the error names, then run "
                f"`fleet roll {spec.group}`",
            )


def _silent(fleet: "Fleet", doubtful: "list[Slot]") -> "list[Slot]":
    """Returns the slots not renewed either; the runtime knows no `fleet worker` of a shell."""
    longest = max(fleet.group(slot.group).runtime.lease for slot in doubtful)
    fleet.clock.sleep(longest / 2)
    now = {
        (slot.group, slot.number): slot
        for group in {slot.group for slot in doubtful}
        for slot in fleet.slots(group)
    }
    same = [(slot, now.get((slot.group, slot.number))) for slot in doubtful]
    return [
        old for old, new in same if new and (new.token, new.counter) == (old.token, old.counter)
    ]


def changes(fleet: "Fleet") -> Iterator[Finding]:
    """Checks for unfinished changes and for pauses."""
    running = {
        spec.group: last.actor
        for spec in fleet.spec.fleets
        if (last := fleet.change(spec.group)) and last.state is ChangeState.RUNNING
    }
    alive = _alive(fleet, running)
    for group, actor in running.items():
        if alive[group]:
            yield ok("changes", f"{actor} is changing {group} now")
            continue
        yield warn(
            "changes",
            f"{actor} left a change of {group} unfinished",
            f"`fleet apply {group} --continue` finishes it, --abort aborts it",
        )
    for pause in fleet.pauses():
        whose = pause.group or "all groups"
        lift = "manage" if pause.is_unmanaged else "resume"
        yield warn(
            "pauses",
            f"{whose}: {pause.reason} ({pause.by})",
            f"`fleet {lift} {pause.group or '--all'}` ends this",
        )
    if all(alive.values()):
        yield ok("changes", "none is unfinished")


def _alive(fleet: "Fleet", groups: Iterable[str]) -> dict[str, bool]:
    """Tells of each unfinished change whether its process runs; watches all for one lease."""
    known = {group: fleet.change_alive(group) for group in groups}
    while unknown := [group for group, alive in known.items() if alive is None]:
        fleet.clock.sleep(_POLL_SECONDS)
        known.update((group, fleet.change_alive(group)) for group in unknown)
    return {group: bool(alive) for group, alive in known.items()}
