"""Measures what fleets at rest ask of an API server: `python -m tests.k8s_store.measure_budget`.

Arguments: fleets, pods per fleet, slots, lease in seconds, seconds to measure, seconds between two
looks of a pod. Prints watches, their events, and requests per second, by verb.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from fleet.clock import SystemClock
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import SlotTargets
from tests.support.fleet_leases import make_leases
from tests.support.kube_api import KubeApi
from tests.support.pods_at_rest import PodAtRest, events_at, requests_at, watches_at


def main() -> None:
    """Starts a server of its own, the fleets on it, and counts."""
    fleets, pods, slots = map(int, sys.argv[1:4])
    lease, seconds, tick = map(float, sys.argv[4:7])
    threading.stack_size(256 << 10)
    with tempfile.TemporaryDirectory() as folder:
        server = KubeApi(Path(folder) / "api")
        running: list[PodAtRest] = []
        try:
            server.start()
            before = watches_at(server)
            namespace = server.namespace()
            for fleet in range(fleets):
                running += _fleet(
                    server,
                    namespace,
                    f"fleet-{fleet}",
                    pods=pods,
                    slots=slots,
                    lease=lease,
                    tick=tick,
                )
            time.sleep(max(20.0, 1.5 * lease))
            held = sum(pod.slot is not None for pod in running)
            sent = events_at(server)
            first, began = requests_at(server), time.monotonic()
            time.sleep(seconds)
            last, took = requests_at(server), time.monotonic() - began
            sent = events_at(server) - sent
            watches = watches_at(server) - before
        finally:
            for pod in running:
                pod.context.stop.set()
            server.stop()
    print(f"{fleets} x {pods} pods, {held} slots owned, lease {lease:g} s, {took:.0f} s")
    share = 2000 / (fleets * pods)
    print(f"watches: {watches}")
    sent /= took
    print(f"events: {60 * sent / len(running):.1f} a minute and pod, {share * sent:.0f}/s in all")
    rates = {key: (n - first.get(key, 0.0)) / took for key, n in last.items()}
    for (verb, resource), rate in sorted(rates.items(), key=lambda each: -each[1]):
        if rate > 0:
            print(f"{verb:6} {resource:11} {rate:8.3f}/s, of 2,000 pods {share * rate:7.1f}/s")
    total = sum(rates.values())
    print(f"all: {total:.2f}/s, of 2,000 pods {share * total:.1f}/s")


def _fleet(
    server: KubeApi, namespace: str, group: str, *, pods: int, slots: int, lease: float, tick: float
) -> list[PodAtRest]:
    clock = SystemClock()
    manager = LeaseStore.for_manager(
        server.api(namespace), cluster="main", clock=clock, lease=lease
    )
    make_leases(manager, group, slots=slots, reports=2 * pods)
    assert manager.write_targets(SlotTargets(group=group, open=frozenset(range(slots))))

    def open_store() -> LeaseStore:
        return LeaseStore.for_worker(
            server.api(namespace), cluster="main", group=group, revision="r1", lease=lease,
            clock=clock,
        )  # fmt: skip

    return [
        PodAtRest(
            open_store, group=group, name=f"{group}-{n}", revision="r1", lease=lease, tick=tick
        ).start()
        for n in range(pods)
    ]


if __name__ == "__main__":
    main()
