"""A worker's Role allows what its slots need and no more; `tests/k8s_store` asks a real server."""

from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.store_roles import reader_rules, worker_rules

NAMES = ObjectNames("main", "orders")
WRITES = {"create", "update", "patch", "delete", "deletecollection", "*"}


def test_a_worker_writes_its_slots_and_reads_the_change() -> None:
    """By name: another group's Leases are nobody's to read."""
    allowed: dict[tuple[str, str], set[str]] = {}
    for rule in worker_rules(NAMES, slots=2):
        for kind in rule["resources"]:
            for name in rule["resourceNames"]:
                allowed.setdefault((kind, name), set()).update(rule["verbs"])
    leases = {name for kind, name in allowed if kind == "leases"}
    assert leases == {NAMES.gate, NAMES.slot(0), NAMES.slot(1), NAMES.change}
    assert allowed["leases", NAMES.change] == {"get"}
    assert allowed["leases", NAMES.gate] & WRITES == {"update"}
    maps = {name: verbs for (kind, name), verbs in allowed.items() if kind == "configmaps"}
    assert maps == {NAMES.crew: {"get", "patch"}, NAMES.marks: {"get", "patch"}}


def test_a_reader_writes_nothing() -> None:
    """Exporter, `fleet status`."""
    assert not {verb for rule in reader_rules() for verb in rule["verbs"]} & WRITES
