"""The operator: follows the ConsumerFleets of its namespaces, and keeps each in a thread.

A change lasts minutes, and other resources must not wait for it. A signal ends the process at once;
the next operator continues an unfinished change one lease later, as after a crash.
"""

import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from fleet.act.runtime import OperatorOptions
from fleet.clock import Clock
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.kubernetes.client.api import Api, connect
from fleet.kubernetes.client.informer import Informer
from fleet.kubernetes.operator.reconciling import Reconciler
from fleet.kubernetes.operator.resource import KIND, PLURAL, DeclaredFleet
from fleet.system.closing import Closing
from fleet.system.listening import ELSEWHERE, Listening, QuietHandler

Say = Callable[[str], None]

_POLL: Final = 0.5
"""Seconds between two reads of what the watches know."""
_SILENCE: Final = 600.0
_RETRY: Final = 30.0
"""Seconds until the next pass after a defect."""
_STUCK: Final = 120.0
"""Seconds without a turn of the main loop after which /healthz fails."""


class Operator(Closing):
    """Keeps all ConsumerFleets of some namespaces."""

    def __init__(self, options: OperatorOptions, *, clock: Clock, say: Say) -> None:
        self._options = options
        self._clock = clock
        self._say = say
        self._watched: dict[str, WatchedNamespace] = {}
        self._turned_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Works until the event is set."""
        for namespace in self._options.namespaces:
            self._watch(namespace)
        with self._listening():
            names = ", ".join(self._options.namespaces)
            self._say(f"watches {PLURAL} in namespace {names}")
            while not stop.wait(_POLL):
                for each in self._watched.values():
                    each.turn()
                self._turned_at = time.monotonic()

    def close(self) -> None:
        """Ends the watches; changes that run go on until the process ends."""
        for each in self._watched.values():
            each.close()

    @property
    def is_moving(self) -> bool:
        """Tells whether the main loop turns."""
        return time.monotonic() - self._turned_at < _STUCK

    @property
    def is_ready(self) -> bool:
        """Tells whether the resources of every namespace are known."""
        return all(each.is_known for each in self._watched.values())

    def _watch(self, namespace: str) -> None:
        options, clock = self._options, self._clock
        api = connect(namespace=namespace, context=None, environ=options.environ, clock=clock)
        self._watched[namespace] = WatchedNamespace(api, options, clock=clock, say=self._say)
        try:
            api.find(KIND)
        except Unreachable:
            raise
        except FleetError as error:
            raise ConfigError(
                f"cannot list {PLURAL} in namespace {namespace}: {error}; install the chart "
                "k8s/chart, and name the namespace in its `watchNamespaces`"
            ) from error

    def _listening(self) -> AbstractContextManager[object]:
        if self._options.listen is None:
            return nullcontext()
        operator = self

        class Health(QuietHandler):
            """Answers the kubelet."""

            def do_GET(self) -> None:
                """Answers /healthz and /readyz."""
                good = {"/healthz": operator.is_moving, "/readyz": operator.is_ready}
                self.answer({None: 404, True: 200, False: 503}[good.get(self.path)], b"")

        return Listening(self._options.listen, Health, key="--listen", remedy=ELSEWHERE)


class WatchedNamespace(Closing):
    """Keeps the ConsumerFleets of one namespace."""

    def __init__(self, api: Api, options: OperatorOptions, *, clock: Clock, say: Say) -> None:
        self._api = api
        self._say = say
        self._options = options
        self._clock = clock
        self._informer = Informer(api.brisk(), KIND, {}, silence=_SILENCE, clock=clock)
        self._informer.start()
        self._keepers: dict[str, ResourceKeeper] = {}
        self.is_known = False

    def turn(self) -> None:
        """Hands what the watch knows to the keepers."""
        found = self._informer.current_objects()
        self.is_known = found is not None
        if found is None:
            return
        declared = {name: DeclaredFleet(each) for name, each in found.items()}
        for name in set(self._keepers) - set(declared):
            self._keepers.pop(name).close()
        for name, each in declared.items():
            if name not in self._keepers:
                reconciler = Reconciler(
                    self._api, self._options, name, clock=self._clock, say=self._say
                )
                self._keepers[name] = ResourceKeeper(reconciler)
            self._keepers[name].tell(each, rival=_rival(each, declared.values()))

    def close(self) -> None:
        """Ends the watch; changes that run go on until the process ends."""
        self._informer.close()
        for keeper in self._keepers.values():
            keeper.close()
        self._api.close()


def _rival(mine: DeclaredFleet, all_: Collection[DeclaredFleet]) -> str | None:
    """Returns the oldest other resource of the same group, if it is older."""
    same = [e for e in all_ if e.group == mine.group and e.cluster == mine.cluster]
    oldest = min(same, key=lambda each: each.age)
    return None if oldest.name == mine.name else oldest.name


class ResourceKeeper(Closing):
    """Keeps one resource in a thread of its own."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler
        self._news = threading.Event()
        self._latest: tuple[DeclaredFleet, str | None] | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._keep, name=reconciler.where, daemon=True)
        self._thread.start()

    def tell(self, declared: DeclaredFleet, *, rival: str | None) -> None:
        """Hands over the resource as it is; a change of what it declares begins a pass."""
        before, self._latest = self._latest, (declared, rival)
        if before is None or _mark(*before) != _mark(declared, rival):
            self._news.set()

    def close(self) -> None:
        """Begins no further pass."""
        self._stopped = True
        self._news.set()

    def _keep(self) -> None:
        wait: float | None = None
        while True:
            self._news.wait(wait)
            self._news.clear()  # before the resource is read: what comes later begins a pass
            if self._stopped:
                break
            assert self._latest is not None
            declared, rival = self._latest
            try:
                wait = self._reconciler.run(declared, rival=rival)
            except Exception as error:  # noqa: BLE001 - other resources, and later passes, go on
                traceback.print_exc()
                self._reconciler.say(f"{type(error).__name__}: {error}; this is a defect")
                wait = _RETRY
        self._reconciler.close()


def _mark(declared: DeclaredFleet, rival: str | None) -> object:
    """Returns what begins a pass if it changes; a status that the operator wrote does not."""
    return declared.meta["uid"], declared.generation, declared.is_deleted, rival
