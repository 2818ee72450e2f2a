"""An exporter whose broker hangs."""

import os
import signal
from collections.abc import Iterator

import pytest

from fleet.clock import SystemClock
from fleet.exporter import Exporter
from fleet.log.readers.tail import Tail
from fleet.manager.cycle import Fleet
from fleet.observe.watcher import GroupWatcher
from tests.exporter.conftest import Scraped, commit
from tests.support.brokers import RunningBroker, running_broker
from tests.support.waiting import meanwhile, until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One that may be stopped."""
    with running_broker(tmp_path_factory.mktemp("stopped")) as made:
        yield made


def test_a_cluster_that_is_away_makes_figures_old_not_zero(broker, topic, unique, config, tmp_path):
    """A broker that hangs: looks fail in time, figures stay, the age grows, and it mends."""
    group, lines = f"seen-{unique}", []
    commit(broker.bootstrap_servers, group, topic, 2)

    def looks() -> float:
        return Scraped(exporter.text(), group)["fleet_exporter_refreshes_total"]

    with Fleet.open(config, home=tmp_path / "home", clock=SystemClock()) as opened:
        name = opened.spec.cluster.name
        tail = Tail(opened.client, cluster=name, clock=opened.clock)
        looking = GroupWatcher(
            cluster=name, config=opened.client, clock=opened.clock, tail=tail, timeout=2.0
        )
        with (
            Exporter(
                opened, listen="127.0.0.1:0", tail=tail, watcher=looking, say=lines.append
            ) as exporter,
            meanwhile(exporter.run),
        ):
            lag = "fleet_group_lag_records"
            until(lambda: lag in Scraped(exporter.text(), group), "the group's first look")
            before = looks()
            # Between two looks: one that is cut short while groups are listed is partial.
            until(lambda: looks() > before, "a look that is just over")
            (node,) = broker.broker.status().nodes
            os.kill(node.pid, signal.SIGSTOP)
            try:
                until(lambda: exporter.age() > 5, "the age to grow")
                away = Scraped(exporter.text(), group)
            finally:
                os.kill(node.pid, signal.SIGCONT)
            assert away["fleet_group_lag_records"] == 6
            assert away["fleet_exporter_refreshes_total"] >= 2
            assert any("did not answer within" in sentence for sentence in lines), lines
            until(lambda: exporter.age() < 1, "a look after it")
            until(lambda: any("resolved" in s for s in lines), "good news")
