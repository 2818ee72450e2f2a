"""`fleet demo`: a fleet that grows, rolls and shrinks under a steady stream, and what it cost.

Problem: a claim of "no rebalance" needs proof. Choice: the demo runs a real broker and real
workers. The policy grows the fleet to six, new code rolls out, and the policy shrinks it to three.
Then six workers of a second group restart one by one, as the baseline. For each step the demo shows
what the coordinator recorded and what the workers' journal proves. Changes are runs of Dagster,
unless it is left out. Cost: two to four minutes and 4 GB of memory on two cores.

The demo stops every process that it started, also after an interrupt. The broker's data stays in
the state directory until `fleet down --purge` or the next demo.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleet.broker import Broker
from fleet.clock import Clock, SystemClock
from fleet.demo.coverage import Due, read, read_topics
from fleet.demo.dagster_ui import DagsterUi, dagster_environ
from fleet.demo.interrupts import Interrupted, interruptible
from fleet.demo.measure import (
    MeasuredStep,
    Meter,
    await_lag,
    await_settled,
    baseline_rebalances,
    begin_at_the_end,
    generations,
    require_done,
    restart_one_by_one,
)
from fleet.demo.producer import OrderStream, order_sender
from fleet.demo.stage import (
    ASSIGNORS,
    BASELINE_GROUP,
    CLUSTER,
    GROUP,
    ID_VARIABLE,
    PARTITIONS,
    RECORDS_PER_WORKER,
    TOPIC,
    Stage,
    leftovers,
)
from fleet.demo.view import Show, broken_guarantees, group_views, report_json, results, table
from fleet.errors import ConfigError, FleetError
from fleet.log.readers.group_log import GroupLog
from fleet.manager.cycle import Fleet
from fleet.security import client_config
from fleet.slots import Change
from fleet.system.home import write_whole
from fleet.system.processes import end_all

# A fast machine processes a backlog before a change is planned. So the demo keeps the backlog up
# until the change has started.
KEPT: Final = 8 * RECORDS_PER_WORKER
"""Records: more than six workers' share, so that the policy wants six after one more batch too."""
CAUGHT_UP: Final = 2 * RECORDS_PER_WORKER
_POLICY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
STEADY: Final = 300
"""Records per second that three workers process on a slow machine too."""
SURGE: Final = 8_000
QUIET: Final = 150
ACTOR: Final = "fleet demo"
STEPS: Final = ("up", "roll", "down", "baseline")
FEWEST: Final = 3
MOST: Final = 6
STEADY_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 20.0


def run_demo(
    *,
    home: Path,
    exit_after: bool,
    dagster: bool = True,
    port: int | None = None,
    assignor: str | None = None,
) -> int:
    """Runs the whole demo; returns 0 if every guarantee held, else 1.

    home: the state directory; the demo deletes a previous demo's data in it. exit_after: stop all
    processes after the table instead of waiting for an interrupt. port: of Dagster's page, default
    a free one. assignor: of both groups, default `$FLEET_DEMO_ASSIGNOR` or cooperative-sticky.
    Raises Refused if the state directory holds another fleet, ConfigError for an unknown assignor,
    FleetError if a step fails, KeyboardInterrupt if interrupted before the table.
    """
    chosen = assignor or os.environ.get("FLEET_DEMO_ASSIGNOR") or ASSIGNORS[0]
    if chosen not in ASSIGNORS:
        raise ConfigError(f"the demo has no assignor {chosen!r}: use {' or '.join(ASSIGNORS)}")
    clock = SystemClock()
    stage = Stage(home.absolute())
    with (
        Show(clock=clock) as show,
        interruptible(lambda: show.say("the demo is stopping; please wait")) as ending,
    ):
        play = DemoRun(stage=stage, clock=clock, show=show, assignor=chosen)
        try:
            try:
                play.start(dagster=dagster, port=port)
                broken = play.play()
                if not exit_after:
                    play.stay()
            finally:
                ending.start()
        finally:  # also if a second interrupt came before `ending` started
            ending.start()
            play.end()
        return 1 if broken else 0


@dataclass(kw_only=True)
class DemoRun:
    """One run of the demo: `start`, `play`, `stay`, and `end` in any case."""

    stage: Stage
    clock: Clock
    show: Show
    assignor: str
    _name: str = field(default="", init=False)
    _fleet: Fleet | None = field(default=None, init=False)
    _watching: Fleet | None = field(default=None, init=False)
    _ui: DagsterUi | None = field(default=None, init=False)
    _stream: OrderStream | None = field(default=None, init=False)
    _meter: Meter | None = field(default=None, init=False)
    _looking: Meter | None = field(default=None, init=False)
    _due: dict[str, Due] = field(default_factory=dict, init=False)
    _aside: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1), init=False)
    """Waits for Dagster's answers, so that an interrupt need not wait."""

    # --- begin ------------------------------------------------------------------------------

    def start(self, *, dagster: bool, port: int | None) -> None:
        """Starts the broker, topic, stream, Dagster, three workers and a standby."""
        say = self.show.say
        ready: Future[None] | None = None
        self._name = self.stage.prepare(assignor=self.assignor)
        self.show.chapter("A broker, a stream of orders, three workers and a standby")
        os.environ[ID_VARIABLE] = self._name  # every process from here on carries it
        if dagster:
            self._ui = DagsterUi(
                home=self.stage.dagster,
                log=self.stage.log("dagster"),
                environ=dagster_environ(config=self.stage.config, home=self.stage.home),
                clock=self.clock,
                port=port,
            )
            self._ui.start()
            ready = self._aside.submit(self._ui.wait_ready)
            say(f"Dagster is starting at {self._ui.url}")
        broker = Broker(self.stage.home, secure=False).start(say=say)
        say(f"Kafka listens at {broker.bootstrap_servers}")
        fleet = self._open()
        fleet.create_topics(progress=say)
        self._stream = OrderStream(
            order_sender(fleet.bootstrap), topic=TOPIC, partitions=PARTITIONS, clock=self.clock
        )
        self._stream.start(QUIET)
        say(f"{QUIET} orders a second go into topic {TOPIC} with {PARTITIONS} partitions")
        self._watch()
        for change in fleet.up(actor=ACTOR, progress=say):
            require_done(change)
        self._rate(STEADY)
        if ready is not None:
            ready.result()
            say("Dagster answers; its schedules are stopped, because the demo starts each change")

    def _open(self) -> Fleet:
        """Opens the fleet with the current fleet.yaml."""
        if self._fleet is not None:
            self._fleet.close()
        self._fleet = Fleet.open(self.stage.config, home=self.stage.home)
        return self._fleet

    def _watch(self) -> None:
        """Starts the view with a Fleet and a log of its own: threads do not share these."""
        watching = Fleet.open(self.stage.config, home=self.stage.home)
        self._unwatch()
        self._watching = watching
        self.show.watch(lambda: group_views(watching, self._looking))

    def _unwatch(self) -> None:
        self.show.unwatch()
        if self._watching is not None:
            self._watching.close()
            self._watching = None

    # --- play -------------------------------------------------------------------------------

    def play(self) -> tuple[str, ...]:
        """Runs all steps and the account; returns a sentence for each broken guarantee."""
        config = self._client()
        self._meter = Meter(log=GroupLog(config, clock=self.clock), clock=self.clock)
        self._looking = Meter(
            log=GroupLog(config, clock=self.clock),
            clock=self.clock,
            steps=self._meter.steps,
        )
        self._await_lag(CAUGHT_UP, GROUP)
        self.clock.sleep(STEADY_SECONDS)  # steady commits, against which downtime is measured
        self._up()
        self._roll()
        self._down()
        self._baseline()
        return self._account()

    def _up(self) -> None:
        self.show.chapter("1  The backlog grows, and the policy scales the fleet to six workers")
        self._rate(SURGE)
        self._await_policy(MOST)
        self._change("up", wanted=None, slots=MOST, hold=True)
        self._await_lag(CAUGHT_UP, GROUP)

    def _roll(self) -> None:
        self.show.chapter("2  New code: Fleet rolls all six workers, one canary first")
        self.stage.new_code()
        self.show.say(f"edited {self.stage.code}: VERSION 2, another tax rate")
        self._change("roll", wanted=MOST, slots=MOST)

    def _down(self) -> None:
        self.show.chapter("3  The stream slows down, and the policy scales the fleet to three")
        self._rate(QUIET)
        self._await_policy(FEWEST)
        self._change("down", wanted=None, slots=FEWEST)

    def _baseline(self) -> None:
        self.show.chapter(
            "4  The baseline: six dynamic workers of a second group restart one by one"
        )
        self._rate(STEADY)
        self.stage.write_spec(assignor=self.assignor, baseline=True)
        fleet = self._open()
        begun = begin_at_the_end(fleet.bootstrap, BASELINE_GROUP, TOPIC)
        self._due[BASELINE_GROUP] = {tp: (offset, offset) for tp, offset in begun.items()}
        self._watch()
        require_done(fleet.apply(BASELINE_GROUP, actor=ACTOR, progress=self.show.say))
        self.clock.sleep(STEADY_SECONDS)
        meter = self._measuring()
        measured = meter.begin_step("baseline", BASELINE_GROUP)
        workers = restart_one_by_one(fleet, BASELINE_GROUP, clock=self.clock, say=self.show.say)
        meter.end(measured, expected=baseline_rebalances(workers, self.assignor))
        await_settled(fleet, BASELINE_GROUP, clock=self.clock)

    def _change(self, name: str, *, wanted: int | None, slots: int, hold: bool = False) -> None:
        """Makes one change of the managed group, as a run of Dagster if that runs.

        hold: keep the backlog until the change has started, since a run takes seconds to plan.
        """
        meter, fleet = self._measuring(), self._now()
        measured = meter.begin_step(name, GROUP)
        if self._ui is None:
            if hold:
                self._rate(STEADY)
            change = fleet.apply(GROUP, wanted=wanted, actor=ACTOR, progress=self.show.say)
        else:
            change = self._by_dagster(self._ui, measured, wanted=wanted, hold=hold)
        require_done(change)
        if len(fleet.targets(GROUP).open) != slots:
            raise FleetError(
                f"{name}: {len(fleet.targets(GROUP).open)} slots are open instead of {slots}: "
                f"{change.sentence}"
            )
        meter.end(
            measured, expected=sum(step.expected_cost.rebalances_max for step in change.plan.steps)
        )

    def _by_dagster(
        self, ui: DagsterUi, measured: MeasuredStep, *, wanted: int | None, hold: bool
    ) -> Change:
        self.show.say("starting a run of the group's plan and rollout in Dagster")
        launched = self._aside.submit(ui.launch, CLUSTER, GROUP, wanted=wanted)  # takes seconds
        if hold:
            self._hold_backlog(lambda: self._begun(measured, launched))
        run = launched.result()
        status = ui.follow(run, say=self.show.say)
        change = self._change_since(measured)
        if change is None:
            raise FleetError(
                f"{measured.name}: run {run} ended as {status} and changed nothing; "
                f"see {ui.url}/runs/{run}"
            )
        return change

    def _change_since(self, measured: MeasuredStep) -> Change | None:
        made = self._now().changes(GROUP, 1)
        return made[0] if made and made[0].started_at >= measured.started_at else None

    def _begun(self, measured: MeasuredStep, launched: Future[str]) -> bool:
        """Returns whether the change has started, or never will."""
        failed = launched.done() and launched.exception() is not None
        return failed or self._change_since(measured) is not None

    def _hold_backlog(self, until: Callable[[], bool]) -> None:
        """Keeps the backlog up in surges, for a minute at most; then the change itself fails."""
        assert self._stream is not None
        self.show.say(f"keeping about {KEPT:,} records waiting until the run starts")
        deadline, now = self.clock.monotonic() + _POLICY_SECONDS, SURGE
        self._stream.rate(now)
        while not until() and self.clock.monotonic() < deadline:
            seen = self._now().snapshot([GROUP]).groups.get(GROUP)
            wanted = SURGE if seen is None or (seen.lag or 0) < KEPT else STEADY
            if wanted != now:
                now = wanted
                self._stream.rate(now)
            self.clock.sleep(_LOOK_SECONDS / 2)
        self._stream.rate(STEADY)
        self.show.say(f"{STEADY:,} orders a second")

    def _account(self) -> tuple[str, ...]:
        """Stops the stream, waits for the last record, and compares with the guarantees."""
        self.show.chapter("5  The account")
        fleet, meter = self._now(), self._measuring()
        assert self._stream is not None
        ends = self._stream.stop()
        self.show.say(f"the stream stopped after {sum(ends.values()):,} orders; waiting for all")
        self._await_lag(0, GROUP, BASELINE_GROUP)
        meter.close_all()
        begun = self._due[BASELINE_GROUP]
        self._due[GROUP] = {tp: (0, end) for tp, end in ends.items()}
        self._due[BASELINE_GROUP] = {tp: (begun[tp][0], end) for tp, end in ends.items()}
        journal = read(self.stage.journal)
        topic_records = read_topics(self._client(), [TOPIC])  # after the journal: no row is unknown
        steps = results(meter.steps, journal, self._due, topic_records)
        report = report_json(fleet.bootstrap, steps)
        write_whole(self.stage.report, json.dumps(report, indent=1) + "\n")
        broken = broken_guarantees(steps, STEPS)
        self.show.rest()
        self.show.table(table(steps))
        for sentence in broken or ("Every guarantee held.",):
            self.show.say(sentence)
        self.show.say(f"generations of each step in __consumer_offsets: {generations(meter.steps)}")
        self.show.say(f"report: {self.stage.report}")
        return broken

    # --- waiting ----------------------------------------------------------------------------

    def _rate(self, rate: int) -> None:
        assert self._stream is not None
        self._stream.rate(rate)
        self.show.say(f"{rate:,} orders a second")

    def _await_policy(self, wanted: int) -> None:
        deadline = self.clock.monotonic() + _POLICY_SECONDS
        while True:
            decision = self._now().wanted(GROUP, self._now().snapshot([GROUP]))
            if decision.wanted == wanted:
                self.show.say(f"the policy: {decision.sentence}")
                return
            if self.clock.monotonic() > deadline:
                raise FleetError(
                    f"the policy did not ask for {wanted} slots within {_POLICY_SECONDS:g} s: "
                    f"{decision.sentence}"
                )
            self.clock.sleep(_LOOK_SECONDS)

    def _await_lag(self, most: int, *groups: str) -> None:
        await_lag(self._now(), groups, most, clock=self.clock)

    def _now(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    def _client(self) -> dict[str, str]:
        """Returns the client configuration for the broker."""
        fleet = self._now()
        return client_config(fleet.spec.cluster, fleet.bootstrap, os.environ)

    def _measuring(self) -> Meter:
        assert self._meter is not None
        return self._meter

    # --- end --------------------------------------------------------------------------------

    def stay(self) -> None:
        """Waits for an interrupt."""
        fleet = self._now()
        self.show.chapter("The demo keeps running")
        where = self._ui.url if self._ui is not None else "left out (--no-dagster)"
        self.show.say(f"Dagster: {where}")
        self.show.say(f"Kafka: {fleet.bootstrap}, topic {TOPIC}, groups {GROUP}, {BASELINE_GROUP}")
        command = Path(sys.executable).with_name("fleet")
        self.show.say(f"in another shell: {self._shell()} {command} status")
        self.show.say("Ctrl-C stops everything; the broker's data stays")
        with contextlib.suppress(Interrupted):
            while True:
                self.clock.sleep(0.5)

    def end(self) -> None:
        """Stops every process of this demo; the data stays."""
        if not self._name:
            return
        self._unwatch()
        self.show.chapter("Stopping")
        self._quietly(lambda: self._stream.end() if self._stream else None)
        self._quietly(lambda: self._ui.end() if self._ui else None)
        self._aside.shutdown(wait=False, cancel_futures=True)
        if self._fleet is not None:
            fleet = self._fleet
            self.show.say("draining workers")
            # Not Fleet.down: its members would leave, which adds records to the last step.
            self._quietly(lambda: fleet.runtime.down(grace=DRAIN_SECONDS))
            self._quietly(fleet.close)
        self._quietly(Broker(self.stage.home).stop)
        left = leftovers(self._name)
        if left:
            self.show.say(f"killing {len(left)} process(es) that did not stop in time")
            end_all(left, grace=2.0)
        os.environ.pop(ID_VARIABLE, None)
        self.show.say("all processes have stopped; the next demo deletes the broker's data, or run")
        self.show.say(f"{self._shell()} fleet down --purge")

    def _shell(self) -> str:
        """Returns the environment of a command in another shell."""
        return f"FLEET_HOME={self.stage.home} FLEET_CONFIG={self.stage.config}"

    def _quietly(self, act: Callable[[], object]) -> None:
        """Runs one part of the shutdown; a failure does not stop the others."""
        try:
            act()
        except (FleetError, OSError) as error:
            self.show.say(f"while stopping: {error}")
