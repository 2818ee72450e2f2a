"""Fixtures for every folder, and the rule for tests whose needs are not met (support/needs.py)."""

import gc
import os
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from fleet.act import spark_server
from fleet.clock import SystemClock
from fleet.worker.pod_environment import SPARK_TOKEN
from tests.support import brokers, dying, kube_home, needs, scheduling, sharing
from tests.support.brokers import RunningBroker, running_broker
from tests.support.clean_clone import CleanClone
from tests.support.last_use import LastUses
from tests.support.sampling import LONG

if TYPE_CHECKING:
    from tests.support.kube import Kube
    from tests.support.kube_api import KubeApi

# A busy machine makes any example slow: no test here is about its own speed.
settings.register_profile("fleet", deadline=None, max_examples=100 if LONG else 40)
settings.load_profile("fleet")

_unmet: Counter[str] = Counter()
_SECONDS = dict.fromkeys(needs.PROBES, 2) | {"spark": 8, "browser": 8, "kubernetes": 6, "slow": 10}
"""Marker → what such a test takes, about; only the order of files depends on it."""
# Every JVM of a test lives for a minute or less, and the optimising compiler pays only after
# that: a quarter of all CPU time without this. `make bench` does without it. (Not
# JDK_JAVA_OPTIONS: brokers are started without it.) Nobody reads their counters for jstat.
if not LONG:
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:-UsePerfData")
# As `spark_link.before_pyspark` has it: a test may load gRPC in another way.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Of Kubernetes and etcd: memory is there, and what is collected less often is collected cheaper.
os.environ.setdefault("GOGC", "400")


@pytest.fixture(scope="session")
def broker() -> RunningBroker:
    """One real Kafka node for the whole session: use unique group and topic names on it."""
    return brokers.shared_broker()


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a shared Spark server, one for the whole session."""
    home = tmp_path_factory.mktemp("home")
    spark_server.start(home)
    try:
        spark_server.wait_ready(home, timeout=300.0, clock=SystemClock())
        yield home
    finally:
        spark_server.stop(home)
        shutil.rmtree(home / "spark", ignore_errors=True)


@pytest.fixture(scope="module")
def spark(spark_home: Path) -> Iterator[Any]:
    """A session of the shared server, as a worker opens its own."""
    from fleet.worker.batch.spark_link import SparkLink

    link = SparkLink(
        where=lambda: spark_server.connect_url(spark_home),
        token=lambda: spark_server.token(spark_home),
        clock=SystemClock(),
        app="test",
    )
    yield link.connect(timeout=300.0, given_up=lambda: False)
    link.close()


@pytest.fixture(scope="module")
def spark_address(spark_home: Path) -> Iterator[str]:
    """Of that server, for workers of other homes; its token is in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SPARK_TOKEN, spark_server.token(spark_home) or "")
        yield spark_server.connect_url(spark_home) or ""


@pytest.fixture(scope="session")
def kube_api(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[KubeApi]":
    """One API server without nodes for the whole session: use a namespace of your own."""
    from tests.support.kube_api import KubeApi

    server = KubeApi(tmp_path_factory.mktemp("kube-api"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def unique() -> str:
    """A suffix that no other test of this session uses."""
    return uuid.uuid4().hex[:8]


@pytest.fixture(scope="session")
def kube() -> "Kube":
    """A real cluster, one for all processes of the session, with this checkout's images."""
    from tests.support import kube as cluster

    return cluster.start()


@pytest.fixture
def namespace(kube: "Kube", unique: str) -> Iterator[str]:
    """A namespace of this test alone."""
    with kube.namespace(f"test-{unique}") as name:
        yield name


@pytest.fixture(scope="session")
def kube_broker(kube: "Kube", tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One real Kafka node for the whole session that pods reach, and this machine too."""
    with running_broker(tmp_path_factory.mktemp("session"), host=kube.host_address) as made:
        yield made


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _needs_of(item: pytest.Item) -> list[str]:
    marks = _marks(item)
    return [name for name in needs.PROBES if name in marks]


def _hear_interrupts() -> None:
    """Behind `&` of a script SIGINT is ignored, and Dagster gives SIGTERM the handler of SIGINT
    while it executes a run: whatever a test starts after that would ignore SIGTERM too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a misspelt FLEET_REQUIRE: it would require nothing."""
    try:
        needs.required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(LastUses())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(CleanClone())
    kube_home.HOME.begin()
    brokers.begin_session()
    dying.watch(kube_home.HOME.own())
    _hear_interrupts()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of several processes that collect everything, each begins with other files."""
    gc.disable()  # all that collecting makes stays
    sharing.import_ahead(session.config)


def pytest_unconfigure() -> None:
    """After the last test of the last process."""
    kube_home.end_session()
    brokers.end_session()


def pytest_report_header() -> str:
    """Which needs may not be skipped."""
    return f"required (FLEET_REQUIRE): {', '.join(sorted(needs.required())) or 'nothing'}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What names no need is a unit test; long forms run only when asked for."""
    if not LONG:
        later = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]
    for item in items:
        used = getattr(item, "fixturenames", ())
        if any(name.endswith("broker") for name in used):
            item.add_marker("broker")
        if "kube" in used:
            item.add_marker("kubernetes")
        if _marks(item).isdisjoint(_SECONDS):
            item.add_marker("unit")
    items[:] = _longest_first(items)


def _longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """The last file decides how long a core idles at the end."""
    named = [item.nodeid.partition("::")[0] for item in items]
    known = [
        max(map(_SECONDS.__getitem__, _marks(item) & _SECONDS.keys()), default=0) for item in items
    ]
    place = scheduling.longest_first(zip(named, known, strict=True))
    return sorted(items, key=lambda item: place[item.nodeid.partition("::")[0]])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.Scheduling:
    """Of several processes, one runs what shares a server."""
    return scheduling.Scheduling(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Probe before the first test, since fetching the jars takes longer than a test may.

    What collecting made stays to the end: no later collection of garbage has to look at it again.
    """
    gc.freeze()
    gc.enable()
    if not session.config.option.collectonly:
        for need in {name for item in session.items for name in _needs_of(item)}:
            needs.missing(need)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip with the reason; fail where the need is required."""
    for need in _needs_of(item):
        reason = needs.missing(need)
        if reason is None:
            continue
        if need in needs.required():
            pytest.fail(f"{need} is required by FLEET_REQUIRE: {reason}", pytrace=False)
        _unmet[need] += 1
        pytest.skip(f"{need}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what could not run here, even where skips are not shown."""
    if _unmet:
        terminalreporter.section("could not run here")
        for need, count in sorted(_unmet.items()):
            terminalreporter.line(f"{need}: {count} tests: {needs.missing(need)}")
