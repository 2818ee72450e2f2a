"""What comes late, repeats or races never takes a committed offset back, by Kafka's own records.

The delays are made in the entrypoint: it notices that its process was stopped, waits on for so
long after SIGCONT, and only then returns, so that the worker's commit comes that late.
"""

import os
import signal
import time
from typing import Any

import pytest

from fleet.slots import Phase
from tests.conftest import RunningBroker
from tests.support.kafka_tools import Record, dump_group_records, generations
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker]

SESSION = 8.0
LEASE = 2.5
TERMS = {
    "session_timeout": f"{SESSION:g}s",
    "heartbeat_interval": "1s",
    "max_poll_interval": "20s",
    "batch": {"max_wait": "100ms"},
}
JOB = """
import os, signal, time
from pathlib import Path
from worker_job import write_journal

FOLDER = Path(os.environ["FOLDER"])


def process(df, context):
    if context.warm:
        return
    write_journal(df, context)
    if (FOLDER / f"die-{context.worker}").exists():
        os.kill(os.getpid(), signal.SIGKILL)  # written, not committed
    wait = FOLDER / f"late-{context.worker}"
    if wait.exists():
        last = time.monotonic()
        while time.monotonic() - last < 2:  # longer between two looks: the process was stopped
            last = time.monotonic()
            time.sleep(0.01)
        time.sleep(float(wait.read_text()))
"""


@pytest.fixture
def job(group: Group) -> Group:
    """A group whose entrypoint can come late."""
    (group.folder / "late_job.py").write_text(JOB)
    return group


def start(group: Group, *names: str, assignor: str = "cooperative-sticky") -> None:
    group.standbys(
        *names,
        env={"FOLDER": str(group.folder)},
        lease=LEASE,
        entrypoint="late_job:process",
        assignor=assignor,
        **TERMS,
    )


def offsets(records: list[Record]) -> dict[int, list[int]]:
    """Partition → every committed offset in the order of the log."""
    found: dict[int, list[int]] = {}
    for record in records:
        if record.type in {0, 1} and record.value is not None:
            found.setdefault(int(record.key["partition"]), []).append(int(record.value["offset"]))
    return found


def assert_never_back(broker: RunningBroker, group: Group) -> dict[int, list[int]]:
    """Monotone per partition, and at the end everything produced."""
    found = offsets(dump_group_records(broker.broker, group.name))
    for partition, each in found.items():
        assert each == sorted(each), f"a commit of partition {partition} went back: {each}"
    assert {p: each[-1] for p, each in found.items()} == dict(group.produced)
    return found


def twice(group: Group) -> int:
    return sum(count - 1 for count in group.times_called().values())


@pytest.mark.parametrize(
    ("delay", "assignor"),
    [
        pytest.param(
            delay,
            assignor,
            marks=() if (delay, assignor) == (0.5, "cooperative-sticky") else pytest.mark.long,
        )
        for assignor in ("cooperative-sticky", "range")
        for delay in (0.0, 0.5, 1.0, 3.0)
    ],
)
def test_a_stopped_members_late_commit(
    job: Group, broker: RunningBroker, delay: float, assignor: str
):
    """SIGSTOP beyond the session, SIGCONT: the batch in hand is never committed late [2]."""
    group = job
    start(group, "w1", "w2", assignor=assignor)
    group.open(0, 1)
    group.produce(80)
    group.drained()
    stopped = group.slot(0).owner
    assert stopped is not None
    (group.folder / f"late-{stopped}").write_text(str(delay))
    before = len(group.journal())
    group.produce(40)

    def taken() -> list[dict[str, Any]]:
        return [line for line in group.journal()[before:] if line["worker"] == stopped]

    group.until(lambda: bool(taken()), "its batch in hand")
    in_hand = taken()[-1]["ranges"]
    os.kill(group.processes[stopped].pid, signal.SIGSTOP)
    group.produce(200)  # its successor shall be well past the batch in hand
    group.until(group.all_committed, "the successor to commit it all")
    ends = {p: end for _, p, _, end, _ in in_hand}
    by_others = offsets(dump_group_records(broker.broker, group.name))
    assert all(by_others[p][-1] > end for p, end in ends.items()), "nothing to go back from"
    (group.folder / f"late-{stopped}").unlink()
    os.kill(group.processes[stopped].pid, signal.SIGCONT)
    time.sleep(delay + 1.5)
    group.produce(80)
    group.drained()
    assert_never_back(broker, group)
    assert set(group.times_called()) >= {
        (p, at) for p, n in group.produced.items() for at in range(n)
    }
    assert twice(group) <= sum(end - start for _, _, start, end, _ in in_hand)
    for process in group.processes.values():
        assert process.poll() is None or process.returncode == 1


@pytest.mark.long
def test_kill_between_write_and_commit_and_two_standbys_race(job: Group, broker: RunningBroker):
    """Exactly one of two standbys gets the slot, repeats the batch in hand, and costs nothing.

    In the short form one standby does so in tests/worker/test_life.py; tests/slots races.
    """
    group = job
    start(group, "w1", "w2", "w3")
    group.open(0)
    group.produce(80)
    group.drained()
    before = max(generations(broker.broker, group.name))
    first = group.slot(0).owner
    assert first is not None
    (group.folder / f"die-{first}").touch()
    group.produce(40)
    group.processes[first].wait(300)
    in_hand = group.journal()[-1]["ranges"]
    group.until(lambda: group.slot(0).owner not in {None, first}, "a new owner")
    group.until(lambda: group.slot(0).phase is Phase.ACTIVE, "the new owner to be a member")
    group.produce(40)
    group.drained()
    time.sleep(LEASE + 1)
    takes = [e for e in group.events("slot") if e["former"] == first]
    assert len(takes) == 1, "one winner"
    alive = {name for name, process in group.processes.items() if process.poll() is None}
    assert alive == {"w1", "w2", "w3"} - {first}, "nobody fenced anybody"
    repeated = [line["ranges"] for line in group.journal() if line["worker"] == takes[0]["worker"]]
    assert repeated[0] == in_hand, "exactly the batch in hand, cut the same way"
    assert twice(group) == sum(end - start for _, _, start, end, _ in in_hand)
    assert_never_back(broker, group)
    assert max(generations(broker.broker, group.name)) == before
