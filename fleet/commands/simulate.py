"""`fleet simulate`: plays a scenario of a group on simulated time, and reports its cost."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from pydantic import Field, ValidationError, model_validator

from fleet.commands.answers import print_json, stdout, table
from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, group_names, output_option
from fleet.commands.screen import Progress
from fleet.config.load import Problem, problems_of, read_tree
from fleet.config.spec import Duration, Strict
from fleet.errors import ConfigError
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.sim.scenarios.group_scenario import Scenario
    from fleet.sim.scenarios.play import ScenarioOutcome

    Named = tuple[str, Callable[[random.Random], Scenario]]


class NetworkSpec(Strict):
    """Bounds the delay of a message, one way, evenly distributed."""

    shortest: Annotated[Duration, Field(ge=0, le=60)] = 0.001
    longest: Annotated[Duration, Field(ge=0, le=60)] = 0.005

    @model_validator(mode="after")
    def _ordered(self) -> "NetworkSpec":
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest is {self.shortest:g} s, longer than longest ({self.longest:g} s)"
            )
        return self


class EventSpec(Strict):
    """Describes an event and its member (from 0); docs/how-to/simulate.md has `lasts` and
    `wait`.
    """

    at: Annotated[Duration, Field(ge=0, le=43_200)]
    do: Literal["start", "leave", "crash", "restart", "slow", "roll", "batched-leave", "failover"]
    member: Annotated[int, Field(ge=0, le=9_999)] = 0
    lasts: Annotated[Duration, Field(ge=0, le=43_200)] = 5.0
    wait: Annotated[Duration, Field(ge=0, le=3_600)] = 10.0
    together: Annotated[int, Field(ge=1, le=1_000)] = 1


class ScenarioSpec(Strict):
    """Describes a group, its members' timeouts, the network, and the events."""

    members: Annotated[int, Field(ge=1, le=1_000)] = 10
    static: bool = False
    protocol: Literal["range", "roundrobin", "sticky", "cooperative-sticky", "consumer"] = "range"
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 20
    client: Literal["librdkafka", "java-0.10.0", "java-0.10.1"] = "librdkafka"
    session_timeout: Annotated[Duration, Field(ge=6, le=1_800)] | None = None
    heartbeat_interval: Annotated[Duration, Field(ge=0.001, le=3_600)] | None = None
    max_poll_interval: Annotated[Duration, Field(ge=6, le=86_400)] = 300.0
    initial_delay: Annotated[Duration, Field(ge=0, le=3_600)] = 3.0
    assignment_interval: Annotated[Duration, Field(ge=0, le=15)] = 1.0
    resubscribe: Annotated[Duration, Field(ge=0, le=60)] = 0.0
    start_within: Annotated[Duration, Field(ge=0, le=3_600)] = 1.0
    connects_in: Annotated[Duration, Field(ge=0, le=600)] = 0.0
    drifts_at: Annotated[Duration, Field(ge=0, le=43_200)] = 0.0
    network: NetworkSpec = NetworkSpec()
    events: tuple[EventSpec, ...] = ()

    @property
    def heartbeat_seconds(self) -> float:
        """Returns the interval in seconds, or the protocol's own."""
        if self.heartbeat_interval is not None:
            return self.heartbeat_interval
        return 5.0 if self.protocol == "consumer" else 3.0

    @property
    def session(self) -> float:
        """Returns the timeout in seconds, or the client's own."""
        if self.session_timeout is not None:
            return self.session_timeout
        return {"java-0.10.0": 30.0, "java-0.10.1": 10.0}.get(self.client, 45.0)

    @model_validator(mode="after")
    def _possible(self) -> "ScenarioSpec":
        if self.heartbeat_seconds >= self.session:
            raise ValueError(
                f"heartbeat_interval is {self.heartbeat_seconds:g} s and must be shorter than "
                f"session_timeout ({self.session:g} s)"
            )
        if self.client == "librdkafka" and self.max_poll_interval < self.session:
            raise ValueError(
                f"max_poll_interval is {self.max_poll_interval:g} s and must not be shorter than "
                f"session_timeout ({self.session:g} s): librdkafka refuses that"
            )
        if self.client != "librdkafka":
            self._possible_for_java()
        return self

    def _possible_for_java(self) -> None:
        if self.static:
            raise ValueError(
                f"client is {self.client}, which has no static members (allowed: static: false)"
            )
        if self.protocol not in {"range", "roundrobin"}:
            raise ValueError(
                f"client is {self.client}, which has no protocol {self.protocol} "
                "(allowed: range, roundrobin)"
            )


def load_scenario(path: Path) -> ScenarioSpec:
    """Reads a scenario. Raises ConfigError that lists every problem as `file:line: key: …`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    root, problems = read_tree(text, {})
    if root is None and not problems:
        raise ConfigError(f"{path} is empty: write at least members: N")
    if root is not None and not isinstance(root.value, dict):
        keys = ", ".join(ScenarioSpec.model_fields)
        problems.append(
            Problem(line=root.line, path="", text=f"is no mapping with the keys {keys}")
        )
    if root is not None and not problems:
        try:
            return ScenarioSpec.model_validate(root.plain())
        except ValidationError as error:
            problems = problems_of(error, root, ScenarioSpec)
    raise ConfigError("\n".join(each.render(str(path)) for each in problems))


COUNTS = ("rebalances", "moved", "duplicates")
LABELS = {
    **{name: name for name in COUNTS},
    "downtime_p50_seconds": "total downtime, p50",
    "downtime_p95_seconds": "total downtime, p95",
    "downtime_longest_seconds": "longest downtime",
    "settled_seconds": "settled",
}
"""Key of a figure → its row in the table. The totals may exceed the longest single downtime."""

_GRACE = 60.0
"""Seconds for a history that has to be read from the broker."""


class SimulateCommand(click.Command):
    """Hands `fleet simulate scaling …` over to the command that replays load."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Returns the context of the command that the first word names."""
        if args[:1] == ["scaling"]:
            from fleet.commands.simulate_scaling import scaling

            return scaling.make_context(f"{info_name} scaling", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=SimulateCommand,
    epilog="Examples:  fleet simulate deploy --members 50  |  fleet simulate --group orders "
    "--scale 12  |  fleet simulate scaling --help",
)
@click.argument("scenario", required=False, metavar="[SCENARIO|FILE]")
@click.option(
    "--members",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Number of members (default: that of the file, else 10).",
)
@click.option("--seed", type=int, default=1, show_default=True, metavar="N",
              help="Seed of the first run.")  # fmt: skip
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of runs, each with the next seed.",
)
@click.option("--group", metavar="GROUP", shell_complete=group_names,
              help="Group to scale, as its history shows it; needs --scale.")  # fmt: skip
@click.option("--scale", type=click.IntRange(1, 1000), metavar="N",
              help="Number of members that GROUP would get.")  # fmt: skip
@output_option
@common
def simulate(
    invocation: Invocation,
    *,
    scenario: str | None,
    members: int | None,
    seed: int,
    seeds: int,
    group: str | None,
    scale: int | None,
    output: str,
) -> None:
    """Simulate what a scenario costs a group; no broker.

    SCENARIO is deploy, deploy-static, deploy-consumer, deploy-fleet, scale-up, crash-loop or
    another of the library. FILE is YAML. Members behave as those of librdkafka, or of Java before
    or after KIP-62. They run against a model of Kafka's coordinator, classic or KIP-848, on
    simulated time. The same seed gives the same run.

    Figures count from the first event on. Downtime is a partition's time without an owner. The
    total adds up all downtimes of one partition: p50 and p95 over partitions. The longest downtime
    is a single one.

    `fleet simulate scaling` is a command of its own: it replays load through rules of scaling.

    --group and --scale simulate N members for a group as `fleet rebalances` shows it. If Fleet runs
    the group, its slots open or leave together; else one process starts or stops every 2 s.
    """
    from fleet.sim.scenarios.play import play

    if (group is None) != (scale is None) or (group and (scenario or members)):
        raise click.UsageError(
            "--group and --scale need each other, and take no SCENARIO and no --members"
        )
    if group is not None and scale is not None:
        scenario, of_seed = _of_group(invocation, group, scale)
    else:
        scenario, of_seed = _of_file(scenario or "deploy", members)
    options, runs = of_seed(random.Random(seed)), []
    with Progress(f"{scenario}: {plural(seeds, 'seed')}") as progress:
        for number in range(seed, seed + seeds):
            rng = random.Random(number)
            runs.append(_figures(play(of_seed(rng), rng)))
            if len(runs) % 100 == 0:
                progress(f"{len(runs)} of {plural(seeds, 'seed')}")
    answer = _answer(scenario, options, seed, runs)
    if output == "json":
        print_json(answer)
        return
    kind = "static" if options.static else "dynamic"
    console = stdout()
    console.print(
        f"{scenario}: {plural(options.members, f'{kind} member')} by {options.protocol}, "
        f"{plural(options.partitions, 'partition')}, {plural(seeds, 'seed')} from {seed}",
        markup=False,
    )
    rows = table("FIGURE", "P50", "P95", right=("P50", "P95"))
    for key, label in LABELS.items():
        shown = str if key in COUNTS else duration
        found = answer["figures"][key]
        rows.add_row(label, shown(found["p50"]), shown(found["p95"]))
    console.print(rows)
    if answer["unsettled"]:
        console.print(f"{plural(answer['unsettled'], 'run')} did not settle within a day")


def _of_file(name: str, members: int | None) -> "Named":
    """Returns a scenario of the library or of a file, the same for every seed."""
    scenario = _scenario(name, members)

    def of_seed(rng: random.Random) -> "Scenario":
        del rng
        return scenario

    return name, of_seed


def _of_group(invocation: Invocation, name: str, members: int) -> "Named":
    """Returns its title, and the change of a recorded group by seed."""
    from fleet.decide.alternatives import build_scaling_scenario, recorded_group
    from fleet.manager.past import read_past

    with invocation.open() as fleet:
        with Progress(f"{name}: its history"):
            past = read_past(fleet, group=name, live=False, grace=_GRACE)
        rows = past.rows
        found = recorded_group(name, rows.rebalances(group=name), rows.memberships(group=name))
        declared = [each.worker for each in fleet.spec.fleets if each.group == name]
        click.echo(f"{name} {past.source.sentence(fleet.clock.now())}", err=True)
    if found.members == members:
        raise ConfigError(
            f"group {name} already has {members} members: give --scale another number"
        )
    worker = next(iter(declared), None)

    def of_seed(rng: random.Random) -> "Scenario":
        return build_scaling_scenario(found, members, worker, rng)

    return f"{name} from {found.members} to {members}", of_seed


def _scenario(name: str, members: int | None) -> "Scenario":
    from fleet.sim.scenarios.group_scenario import LIBRARY, library

    if name in LIBRARY:
        return library(name, members or 10)
    path = Path(name)
    try:
        there = path.exists()
    except (OSError, ValueError):  # no name of a file
        there = False
    if not there:
        raise ConfigError(
            f"{name} is neither a file nor a scenario (allowed: {', '.join(LIBRARY)})"
        )

    options = _played(load_scenario(path))
    return options if members is None else options._replace(members=members)


def _played(spec: "ScenarioSpec") -> "Scenario":
    from fleet.sim.scenarios.group_scenario import Scenario, ScenarioEvent

    fields = {name: getattr(spec, name) for name in Scenario._fields if hasattr(spec, name)}
    fields |= {"session_timeout": spec.session, "heartbeat_interval": spec.heartbeat_seconds}
    fields |= {"shortest_delay": spec.network.shortest, "longest_delay": spec.network.longest}
    events = tuple(
        ScenarioEvent(
            _ms(each.at), each.do, each.member, _ms(each.lasts), _ms(each.wait), each.together
        )
        for each in spec.events
    )
    in_ms: dict[str, Any] = {
        name: _ms(each) if isinstance(each, float) else each for name, each in fields.items()
    }
    return Scenario(**(in_ms | {"events": events}))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _figures(played: "ScenarioOutcome") -> dict[str, float | None]:
    return {
        "rebalances": played.rebalances,
        "moved": played.moved,
        "duplicates": played.duplicates,
        "downtime_p50_seconds": _quantile(played.pauses, 50) / 1000,
        "downtime_p95_seconds": _quantile(played.pauses, 95) / 1000,
        "downtime_longest_seconds": played.longest / 1000,
        "settled_seconds": None if played.settled is None else played.settled / 1000,
    }


def _quantile(values: Any, percent: int) -> float:
    """Returns the smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return float(ordered[max(0, -(-len(ordered) * percent // 100) - 1)])


def _answer(
    name: str, options: "Scenario", seed: int, runs: list[dict[str, float | None]]
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for key in runs[0]:
        values = [each[key] for each in runs if each[key] is not None]
        counts = key in COUNTS
        found = [_quantile(values, p) if values else None for p in (50, 95)]
        p50, p95 = (int(v) if counts and v is not None else v for v in found)
        figures[key] = {"p50": p50, "p95": p95}
    return {
        "schema_version": SCHEMA_VERSION,
        "scenario": name,
        "members": options.members,
        "static": options.static,
        "protocol": options.protocol,
        "partitions": options.partitions,
        "seed": seed,
        "seeds": len(runs),
        "unsettled": sum(each["settled_seconds"] is None for each in runs),
        "figures": figures,
    }
