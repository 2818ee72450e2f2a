"""`fleet demo`: a fleet that grows, rolls and shrinks under a steady stream, and what it cost.

Problem: "no rebalance" is easily said. Choice: on a real broker, with real workers, the demo
does what a platform does in a week within minutes (the policy grows the fleet, new code rolls
out, the policy shrinks it), then restarts a second group the ordinary way, and shows for each
step what the coordinator recorded and what the workers' journal proves. Changes are runs of
Dagster unless that is left out. Cost: two to four minutes and 4 GB of memory on two cores.

Whatever ends the demo, an interrupt included, ends every process that it started; the broker's
data stays under `$FLEET_HOME` until `fleet down --purge` or the next demo.
"""

import contextlib
import json
import os
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
    Meter,
    OneByOne,
    Stretch,
    await_lag,
    await_settled,
    begin_at_the_end,
    ended_well,
    generations,
    usual_rebalances,
)
from fleet.demo.producer import OrderStream
from fleet.demo.stage import (
    ASSIGNORS,
    CLUSTER,
    GROUP,
    ID_VARIABLE,
    ORDINARY_GROUP,
    PARTITIONS,
    RECORDS_PER_WORKER,
    TOPIC,
    Stage,
    leftovers,
)
from fleet.demo.view import Show, broken_promises, pictures, report_json, results, table
from fleet.errors import ConfigError, FleetError
from fleet.log.readers.group_log import GroupLog
from fleet.manager.cycle import Fleet
from fleet.security import client_config
from fleet.slots import Change
from fleet.system.home import write_whole
from fleet.system.processes import end_all

# On a fast machine a backlog is gone before a change is planned: as much is produced as is
# processed until the change has begun.
KEPT: Final = 8 * RECORDS_PER_WORKER
"""More than six workers' share, so that the policy wants six also where one more batch is done."""
CAUGHT_UP: Final = 2 * RECORDS_PER_WORKER
_POLICY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
STEADY: Final = 300
"""Records per second while nothing is asked: three workers manage them on a slow machine too."""
SURGE: Final = 8_000
QUIET: Final = 150
ACTOR: Final = "fleet demo"
STEPS: Final = ("up", "roll", "down", "ordinary")
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
    """Play the whole scenario; 0 where every promise held, 1 where one did not.

    home: `$FLEET_HOME`; a previous demo's data in it is deleted. exit_after: end everything
    after the table, else stay until interrupted. port: of Dagster's page, default a free one.
    assignor: of both groups, default `$FLEET_DEMO_ASSIGNOR` or cooperative-sticky. Raises
    Refused where the home holds another fleet, ConfigError for an unknown assignor, FleetError
    where a step fails; KeyboardInterrupt where it is interrupted before the table.
    """
    chosen = assignor or os.environ.get("FLEET_DEMO_ASSIGNOR") or ASSIGNORS[0]
    if chosen not in ASSIGNORS:
        raise ConfigError(f"assignor {chosen!r} of the demo: allowed are {', '.join(ASSIGNORS)}")
    clock = SystemClock()
    stage = Stage(home.absolute())
    with (
        Show(clock=clock) as show,
        interruptible(lambda: show.say("everything is being ended; one moment")) as ending,
    ):
        play = Play(stage=stage, clock=clock, show=show, assignor=chosen)
        try:
            try:
                play.start(dagster=dagster, port=port)
                broken = play.play()
                if not exit_after:
                    play.stay()
            finally:
                ending.start()
        finally:  # also where a second interrupt came before `ending` knew
            ending.start()
            play.end()
        return 1 if broken else 0


@dataclass(kw_only=True)
class Play:
    """The scenario in hand: `begin`, `play`, `stay`, and `end` whatever happened."""

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
    """Waits for Dagster's answers, so that an interrupt need not."""

    # --- begin ------------------------------------------------------------------------------

    def start(self, *, dagster: bool, port: int | None) -> None:
        """Broker, topic, stream, Dagster, three workers and a standby."""
        say = self.show.say
        ready: Future[None] | None = None
        self.show.chapter("A broker, a stream of orders, three workers and a standby")
        self._name = self.stage.prepare(assignor=self.assignor)
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
            say(f"Dagster starts at {self._ui.url}")
        broker = Broker(self.stage.home, secure=False).start(say=say)
        say(f"Kafka listens at {broker.bootstrap_servers}")
        fleet = self._open()
        fleet.create_topics(progress=say)
        self._stream = OrderStream(
            self.stage.folder,
            bootstrap=fleet.bootstrap,
            clock=self.clock,
            topic=TOPIC,
            partitions=PARTITIONS,
        )
        self._stream.start(QUIET)
        say(f"{QUIET} numbered orders a second into topic {TOPIC}, {PARTITIONS} partitions")
        self._watch()
        for change in fleet.up(actor=ACTOR, progress=say):
            ended_well(change)
        self._rate(STEADY)
        if ready is not None:
            ready.result()
            say("Dagster answers, its schedules are stopped: the demo says when")

    def _open(self) -> Fleet:
        """The fleet as its file says now."""
        if self._fleet is not None:
            self._fleet.close()
        self._fleet = Fleet.open(self.stage.config, home=self.stage.home)
        return self._fleet

    def _watch(self) -> None:
        """Look with a Fleet and a log of the thread's own: neither is shared between threads."""
        watching = Fleet.open(self.stage.config, home=self.stage.home)
        self._unwatch()
        self._watching = watching
        self.show.watch(lambda: pictures(watching, self._looking))

    def _unwatch(self) -> None:
        self.show.unwatch()
        if self._watching is not None:
            self._watching.close()
            self._watching = None

    # --- play -------------------------------------------------------------------------------

    def play(self) -> tuple[str, ...]:
        """All steps and the account; which promises were broken, in sentences."""
        config = self._client()
        self._meter = Meter(log=GroupLog(config, clock=self.clock), clock=self.clock)
        self._looking = Meter(
            log=GroupLog(config, clock=self.clock),
            clock=self.clock,
            stretches=self._meter.stretches,
        )
        self._await_lag(CAUGHT_UP, GROUP)
        self.clock.sleep(STEADY_SECONDS)  # commits in a steady rhythm, to measure pauses against
        self._up()
        self._roll()
        self._down()
        self._ordinary()
        return self._account()

    def _up(self) -> None:
        self.show.chapter("1  The backlog grows, and the policy takes the fleet to six")
        self._rate(SURGE)
        self._await_policy(MOST)
        self._change("up", wanted=None, slots=MOST, hold=True)
        self._await_lag(CAUGHT_UP, GROUP)

    def _roll(self) -> None:
        self.show.chapter("2  New code: all six are replaced, one canary first")
        self.stage.new_code()
        self.show.say(f"edited {self.stage.code}: VERSION 2, another tax")
        self._change("roll", wanted=MOST, slots=MOST)

    def _down(self) -> None:
        self.show.chapter("3  The stream gets thin, and the policy shrinks the fleet to three")
        self._rate(QUIET)
        self._await_policy(FEWEST)
        self._change("down", wanted=None, slots=FEWEST)

    def _ordinary(self) -> None:
        self.show.chapter("4  A second group, dynamic members, restarted one by one")
        self._rate(STEADY)
        self.stage.write_spec(assignor=self.assignor, ordinary=True)
        fleet = self._open()
        begun = begin_at_the_end(fleet.bootstrap, ORDINARY_GROUP, TOPIC)
        self._due[ORDINARY_GROUP] = {tp: (offset, offset) for tp, offset in begun.items()}
        self._watch()
        ended_well(fleet.apply(ORDINARY_GROUP, actor=ACTOR, progress=self.show.say))
        self.clock.sleep(STEADY_SECONDS)
        meter = self._measuring()
        stretch = meter.open_stretch("ordinary", ORDINARY_GROUP)
        restarts = OneByOne(fleet=fleet, group=ORDINARY_GROUP, clock=self.clock, say=self.show.say)
        workers = restarts.run()
        meter.end(stretch, expected=usual_rebalances(workers, self.assignor))
        await_settled(fleet, ORDINARY_GROUP, clock=self.clock)

    def _change(self, name: str, *, wanted: int | None, slots: int, hold: bool = False) -> None:
        """One change of the managed group, as a run of Dagster where there is one.

        hold: keep the backlog until the change has begun, since a run takes seconds to plan.
        """
        meter, fleet = self._measuring(), self._now()
        stretch = meter.open_stretch(name, GROUP)
        if self._ui is None:
            if hold:
                self._rate(STEADY)
            change = fleet.apply(GROUP, wanted=wanted, actor=ACTOR, progress=self.show.say)
        else:
            change = self._by_dagster(self._ui, stretch, wanted=wanted, hold=hold)
        ended_well(change)
        if len(fleet.targets(GROUP).open) != slots:
            raise FleetError(
                f"{name}: {len(fleet.targets(GROUP).open)} slots are open, {slots} were to be: "
                f"{change.sentence}"
            )
        meter.end(
            stretch, expected=sum(step.expected_cost.rebalances_max for step in change.plan.steps)
        )

    def _by_dagster(
        self, ui: DagsterUi, stretch: Stretch, *, wanted: int | None, hold: bool
    ) -> Change:
        self.show.say("asking Dagster for a run of the group's plan and rollout")
        launched = self._aside.submit(ui.launch, CLUSTER, GROUP, wanted=wanted)  # takes seconds
        if hold:
            self._hold_backlog(lambda: self._begun(stretch, launched))
        run = launched.result()
        status = ui.follow(run, say=self.show.say)
        change = self._change_since(stretch)
        if change is None:
            raise FleetError(
                f"{stretch.name}: Dagster's run ended as {status} and changed nothing; "
                f"see {ui.url}/runs/{run}"
            )
        return change

    def _change_since(self, stretch: Stretch) -> Change | None:
        made = self._now().changes(GROUP, 1)
        return made[0] if made and made[0].started_at >= stretch.started_at else None

    def _begun(self, stretch: Stretch, launched: Future[str]) -> bool:
        """The change has begun, or never will."""
        failed = launched.done() and launched.exception() is not None
        return failed or self._change_since(stretch) is not None

    def _hold_backlog(self, until: Callable[[], bool]) -> None:
        """In surges; a minute at most: what was waited for fails in its own words then."""
        assert self._stream is not None
        self.show.say(f"about {KEPT:,} records are kept waiting until the run begins")
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
        """Stop the stream, let everything be processed, and compare with what was promised."""
        self.show.chapter("5  The account")
        fleet, meter = self._now(), self._measuring()
        assert self._stream is not None
        ends = self._stream.stop()
        self.show.say(f"the stream ended after {sum(ends.values()):,} orders; waiting for the last")
        self._await_lag(0, GROUP, ORDINARY_GROUP)
        meter.close_all()
        begun = self._due[ORDINARY_GROUP]
        self._due[GROUP] = {tp: (0, end) for tp, end in ends.items()}
        self._due[ORDINARY_GROUP] = {tp: (begun[tp][0], end) for tp, end in ends.items()}
        journal = read(self.stage.journal)
        held = read_topics(self._client(), [TOPIC])  # after the journal: no row is unknown
        steps = results(meter.stretches, journal, self._due, held)
        report = report_json(fleet.bootstrap, steps)
        write_whole(self.stage.report, json.dumps(report, indent=1) + "\n")
        broken = broken_promises(steps, STEPS)
        self.show.rest()
        self.show.table(table(steps))
        for sentence in broken or ("Every promise held.",):
            self.show.say(sentence)
        self.show.say(f"generations in __consumer_offsets: {generations(meter.stretches)}")
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
                    f"the policy does not want {wanted} slots after {_POLICY_SECONDS:g} s: "
                    f"{decision.sentence}"
                )
            self.clock.sleep(_LOOK_SECONDS)

    def _await_lag(self, most: int, *groups: str) -> None:
        await_lag(self._now(), groups, most, clock=self.clock)

    def _now(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    def _client(self) -> dict[str, str]:
        """How a client reaches the broker."""
        fleet = self._now()
        return client_config(fleet.spec.cluster, fleet.bootstrap, os.environ)

    def _measuring(self) -> Meter:
        assert self._meter is not None
        return self._meter

    # --- end --------------------------------------------------------------------------------

    def stay(self) -> None:
        """Stay up until interrupted."""
        fleet = self._now()
        self.show.chapter("Everything stays up")
        where = self._ui.url if self._ui is not None else "left out (--no-dagster)"
        self.show.say(f"Dagster: {where}")
        self.show.say(f"Kafka: {fleet.bootstrap}, topic {TOPIC}, groups {GROUP}, {ORDINARY_GROUP}")
        self.show.say(f"in another shell: {self._shell()} fleet status")
        self.show.say("Ctrl-C ends everything; the broker's data stays")
        with contextlib.suppress(Interrupted):
            while True:
                self.clock.sleep(0.5)

    def end(self) -> None:
        """End every process that this demo started; data stays."""
        if not self._name:
            return
        self._unwatch()
        self.show.chapter("Ending")
        self._quietly(lambda: self._stream.end() if self._stream else None)
        self._quietly(lambda: self._ui.end() if self._ui else None)
        self._aside.shutdown(wait=False, cancel_futures=True)
        if self._fleet is not None:
            fleet = self._fleet
            self.show.say("draining workers")
            # Not Fleet.down: it would let members leave, and add to the records of the steps.
            self._quietly(lambda: fleet.runtime.down(grace=DRAIN_SECONDS))
            self._quietly(fleet.close)
        self._quietly(Broker(self.stage.home).stop)
        left = leftovers(self._name)
        if left:
            self.show.say(f"{len(left)} process(es) did not end by themselves and are killed")
            end_all(left, grace=2.0)
        os.environ.pop(ID_VARIABLE, None)
        self.show.say("no process is left; the broker's data stays until a new demo, or until")
        self.show.say(f"{self._shell()} fleet down --purge")

    def _shell(self) -> str:
        """What a command in another shell needs to know."""
        return f"FLEET_HOME={self.stage.home} FLEET_CONFIG={self.stage.config}"

    def _quietly(self, act: Callable[[], object]) -> None:
        """One part of the ending; if it fails the others still come, and leftovers are killed."""
        try:
            act()
        except (FleetError, OSError) as error:
            self.show.say(f"while ending: {error}")
