"""Workers live on, come back and go, whoever of them or their supervisor is killed."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import fleet
from fleet.act.local.local_runtime import find_orphans
from fleet.act.local.process_table import ProcessTable
from fleet.clock import SystemClock
from fleet.errors import Refused
from fleet.slots import SlotTargets
from fleet.slots.sqlite import DATABASE, SqliteStore
from fleet.system.processes import alive, environment, home_processes, identify, signal_group, spawn
from tests.runtime.conftest import GROUP, REVISION

pytestmark = pytest.mark.slow


def test_workers_are_started_under_names_never_used_again(bench):
    """Names end in a number that grows, also after workers were removed."""
    bench.runtime.ensure()
    first = bench.start(2)
    assert first == ("orders-abcd-1", "orders-abcd-2")
    bench.until(lambda: bench.all_run(2))
    bench.runtime.remove(first, grace=5.0)
    bench.until(lambda: not bench.runtime.workers())
    assert sorted(name for name, _ in bench.entries("term")) == sorted(first)
    assert bench.start(1) == ("orders-abcd-3",)


def test_old_revisions_are_let_go_unless_they_are_used(bench):
    """The ten youngest stay, and whatever a worker runs, however old."""
    bench.start(1)
    for number in range(15):
        bench.runtime.publish(GROUP, f"r{number:02}", "{}")
        os.utime(bench.runtime.revision_dir(GROUP, f"r{number:02}") / "settings.json", (0, number))
    bench.runtime.publish(GROUP, "last", "{}")
    kept = {n for n in range(15) if bench.runtime.published(GROUP, f"r{n:02}") is not None}
    assert kept == set(range(5, 15))
    assert bench.runtime.published(GROUP, REVISION) is not None


def test_a_worker_of_an_unpublished_revision_is_refused(bench):
    """Nothing can be started that was not published."""
    with pytest.raises(Refused, match="not published"):
        bench.runtime.start("orders", "0000000000", 1)


def test_published_settings_are_kept_and_replaced(bench):
    """None before; the last text after."""
    assert bench.runtime.published("a/b", "r1") is None
    bench.runtime.publish("a/b", "r1", "{}")
    bench.runtime.publish("a/b", "r1", '{"a": 1}')
    assert bench.runtime.published("a/b", "r1") == '{"a": 1}'
    assert bench.runtime.code_dir("a/b", "r1") != bench.runtime.code_dir("a:b", "r1")


def test_a_killed_supervisor_leaves_its_workers_to_the_next_one(bench):
    """Kill -9: the same processes go on under a new supervisor, and no second copy starts."""
    bench.runtime.ensure()
    bench.start(3)
    bench.until(lambda: bench.all_run(3))
    before = bench.pids()
    old = bench.kill_supervisor()
    assert bench.pids() == before
    bench.runtime.ensure()
    new = bench.runtime.supervisor()
    assert new is not None
    assert new != old
    time.sleep(0.6)  # three looks
    assert bench.pids() == before
    assert len(bench.entries("start")) == 3
    name, pid = next(iter(before.items()))
    os.kill(pid, signal.SIGKILL)  # not its child, and still seen
    bench.until(lambda: bench.lives_again(name, pid))


def test_a_supervisor_whose_installation_is_gone_is_followed_by_ours(bench, tmp_path):
    """It could start nobody any more, and was taken for a good one for as long as it lived."""
    python = tmp_path / "venv-of-the-release-before"
    python.symlink_to(sys.executable)
    old = spawn(
        (str(python), "-m", "fleet.act.local.supervisor", "--home", str(bench.runtime.home)),
        log=bench.home / "supervisor" / "log",
        env=environment(bench.runtime.home, part="supervisor"),
    )
    bench.until(lambda: bench.runtime.supervisor() == old)
    bench.runtime.ensure()
    assert bench.runtime.supervisor() == old
    bench.start(1)
    bench.until(lambda: bench.all_run(1))
    before = bench.pids()
    python.unlink()
    bench.runtime.ensure()
    assert bench.runtime.supervisor() not in {None, old}
    assert not alive(old)
    time.sleep(0.6)  # three looks
    assert bench.pids() == before


def test_workers_are_of_the_installation_that_asks_for_them(bench, monkeypatch):
    """The supervisor may be of the one before, which is still there: a roll is to leave it."""
    bench.start(1)
    table = ProcessTable(bench.home, clock=SystemClock())
    (row,) = table.rows()
    table.close()
    ours = str(Path(fleet.__file__).parents[1])
    monkeypatch.setattr(fleet, "__file__", "/venv-of-the-release-before/fleet/__init__.py")
    env = environment(bench.home, part="worker", extra=row.launch.env)
    path = env["PYTHONPATH"].split(os.pathsep)
    assert path.index(ours) < path.index("/venv-of-the-release-before")


def test_a_start_that_was_not_written_down_is_found_again(bench):
    """Killed between start and record: the new supervisor adopts, ends what nobody wants."""
    bench.runtime.ensure()
    (name,) = bench.start(1)
    bench.until(lambda: bench.all_run(1))
    (pid,) = bench.pids().values()
    bench.kill_supervisor()
    table = ProcessTable(bench.home, clock=SystemClock())
    table.ended(name, reason="", failures=0, restarts=0)
    assert bench.worker(name).pid is None
    stranger = spawn(
        bench.arguments(bench.home, "stranger"),
        log=bench.home / "log",
        env=environment(bench.runtime.home, part="worker", worker="stranger"),
    )
    bench.until(lambda: ("stranger", stranger.pid) in bench.entries("start"))
    assert {p.pid for p in find_orphans(bench.home)} == {pid, stranger.pid}
    bench.runtime.ensure()
    bench.until(lambda: bench.worker(name).pid == pid)
    bench.until(lambda: not alive(stranger))
    assert find_orphans(bench.home) == []
    assert [n for n, _ in bench.entries("start")] == [name, "stranger"]


def test_a_killed_worker_comes_back_and_its_end_is_named(bench):
    """Kill -9 of a worker: another process under the same name, with the reason kept."""
    bench.runtime.ensure()
    (name,) = bench.start(1)
    bench.until(lambda: bench.all_run(1))
    pid = bench.worker(name).pid
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: bench.lives_again(name, pid))
    assert bench.worker(name).restarts == 1
    assert "SIGKILL" in bench.worker(name).exit_reason


def test_what_a_killed_worker_held_waits_for_no_lease(bench):
    """Its slot says that its owner has ended before its next life starts; others' do not."""
    bench.runtime.ensure()
    killed, other = bench.start(2)
    bench.until(lambda: bench.all_run(2))
    store = SqliteStore(bench.home / DATABASE, cluster="main", clock=SystemClock())
    store.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1})))
    for slot, worker in zip(store.slots(GROUP), (killed, other), strict=True):
        assert store.take(slot, worker=worker, revision=REVISION, spark_session=None)
    pid = bench.worker(killed).pid
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: bench.lives_again(killed, pid))
    told = {slot.owner: slot.owner_ended for slot in store.slots(GROUP)}
    assert told == {killed: True, other: False}, bench.log()
    left = "import time; time.sleep(60)"  # as Spark's Python daemon, in a group of its own
    environ = environment(bench.runtime.home, part="worker", worker=other)
    child = spawn([sys.executable, "-S", "-c", left], log=bench.home / "log", env=environ)
    pid = bench.worker(other).pid
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: bench.lives_again(other, pid))
    told = {slot.owner: slot.owner_ended for slot in store.slots(GROUP)}
    store.close()
    signal_group(child, signal.SIGKILL)
    assert told == {killed: True, other: False}, "what it left behind may still write"


def test_a_worker_that_fails_is_started_less_and_less_often(bench):
    """Back-off 0.5 s, 1 s, …; the last line of its log is its reason."""
    bench.runtime.ensure()
    (name,) = bench.start(1, env={"STUB": "broken"})
    bench.until(lambda: bench.worker(name).restarts >= 3)
    assert bench.worker(name).exit_reason == "exit code 3: no such table: orders"
    assert bench.worker(name).is_failing, "as status and verdict tell"
    ends = [line for line in bench.log().splitlines() if f"{name} stopped" in line]
    assert [line.rpartition("restarting in ")[2] for line in ends[:3]] == ["0.5 s", "1 s", "2 s"]


def test_a_person_restarts_a_worker_by_sigterm(bench):
    """An orderly end of a wanted worker is no failure: started again at once."""
    bench.runtime.ensure()
    (name,) = bench.start(1)
    bench.until(lambda: bench.all_run(1))
    time.sleep(1.0)  # LEAST_LIFE
    pid = bench.worker(name).pid
    os.kill(pid, signal.SIGTERM)
    bench.until(lambda: bench.worker(name).pid not in {None, pid})
    bench.until(lambda: bench.all_run(1))
    pid = bench.worker(name).pid
    bench.runtime.restart(name)  # soon after its start, and no failure either
    bench.until(lambda: bench.worker(name).pid not in {None, pid})
    assert bench.log().count("restarting in 0 s") == 2
    with pytest.raises(Refused, match=f"existing workers: {name}"):
        bench.runtime.restart("nobody")


def test_a_worker_that_does_not_end_is_killed_after_its_grace(bench):
    """Removal is SIGTERM, grace, SIGKILL."""
    bench.runtime.ensure()
    names = bench.start(1, env={"STUB": "deaf"})
    bench.until(lambda: bench.all_run(1))
    asked = time.monotonic()
    bench.runtime.remove(names, grace=0.5)
    bench.until(lambda: not bench.runtime.workers())
    assert time.monotonic() - asked >= 0.5


def test_two_callers_at_once_get_one_supervisor(bench):
    """Ensure races with itself: one supervisor in the end, every caller returns."""
    errors: list[BaseException] = []

    def ensure() -> None:
        try:
            bench.runtime.ensure()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    home = bench.runtime.home
    bench.until(lambda: len([m for m in home_processes(home) if m.part == "supervisor"]) == 1)
    (left,) = [m for m in home_processes(home) if m.part == "supervisor"]
    assert bench.runtime.supervisor() == left.process


def test_all_killed_and_all_back(bench):
    """After the death of everything one ensure brings all wanted workers back."""
    bench.runtime.ensure()
    names = bench.start(2)
    bench.until(lambda: bench.all_run(2))
    bench.kill_supervisor()
    for pid in bench.pids().values():
        os.kill(pid, signal.SIGKILL)
    bench.until(lambda: not list(home_processes(bench.runtime.home)))
    bench.runtime.ensure()
    bench.until(lambda: bench.all_run(2))
    assert tuple(bench.pids()) == names


@pytest.mark.parametrize(
    "supervisor",
    [
        pytest.param("alive", id="with-its-supervisor"),
        pytest.param("dead", id="supervisor-killed-before"),
        pytest.param("stuck", id="supervisor-stopped-by-a-signal"),
    ],
)
def test_down_leaves_nothing(bench, monkeypatch, supervisor):
    """After down no process of the home runs, whatever state its supervisor was in."""
    monkeypatch.setattr("fleet.act.local.local_runtime._SLACK_SECONDS", 0.5)
    bench.runtime.ensure()
    bench.start(2, env={"STUB_DRAIN": "0.3"})
    bench.until(lambda: bench.all_run(2))
    if supervisor == "dead":
        bench.kill_supervisor()
    elif supervisor == "stuck":
        os.kill(bench.runtime.supervisor().pid, signal.SIGSTOP)
    bench.runtime.down(grace=2.0)
    assert list(home_processes(bench.runtime.home)) == []
    assert bench.runtime.workers() == ()
    assert bench.runtime.supervisor() is None
    assert len(bench.entries("term")) == 2  # asked, not killed
    bench.runtime.ensure()  # and up again
    bench.start(1)
    bench.until(lambda: bench.all_run(1))


def test_a_supervisor_that_is_asked_to_end_leaves_its_workers(bench):
    """SIGTERM to the supervisor ends it alone."""
    bench.runtime.ensure()
    bench.start(1)
    bench.until(lambda: bench.all_run(1))
    supervisor = bench.runtime.supervisor()
    os.kill(supervisor.pid, signal.SIGTERM)
    bench.until(lambda: not alive(supervisor))
    (pid,) = bench.pids().values()
    assert identify(pid) is not None
    assert bench.runtime.supervisor() is None


def test_a_deleted_home_takes_its_processes_along(bench, tmp_path):
    """What cannot be found again does not live on."""
    bench.runtime.ensure()
    bench.start(1)
    bench.until(lambda: bench.all_run(1))
    bench.home.rename(tmp_path / "elsewhere")
    bench.until(lambda: not list(home_processes(bench.runtime.home)))
    (tmp_path / "elsewhere").rename(bench.home)


def test_a_worker_sees_its_home_its_name_and_its_code_first(bench):
    """The revision's copy of the code comes before every other folder of the module path."""
    bench.runtime.ensure()
    (name,) = bench.start(1, python_path=("/srv/jobs",), env={"PYTHONPATH": "/srv/more", "A": "b"})
    bench.until(lambda: bench.all_run(1))
    pid = bench.worker(name).pid
    with open(f"/proc/{pid}/environ", encoding="utf-8") as text:  # noqa: PTH123
        env = dict(line.split("=", 1) for line in text.read().split("\0") if line)
    assert env["FLEET_HOME"] == str(bench.runtime.home)
    assert env["FLEET_WORKER"] == name
    assert env["A"] == "b"
    code = str(bench.runtime.code_dir("orders", "abcdef0123"))
    assert env["PYTHONPATH"].split(":")[:3] == [code, "/srv/jobs", "/srv/more"]


def test_down_ends_children_whose_parent_is_gone(bench, tmp_path):
    """A process that a worker left behind is found by its marks and ended too."""
    left = "import os, sys, time; os.fork() and sys.exit(0); open(sys.argv[1], 'w'); time.sleep(60)"
    started = tmp_path / "started"
    spawn(
        [sys.executable, "-S", "-c", left, str(started)],
        log=bench.home / "log",
        env=environment(bench.runtime.home, part="worker", worker="parent"),
    )
    bench.until(lambda: started.exists() and len(find_orphans(bench.home)) == 1)
    bench.runtime.down(grace=1.0)
    assert list(home_processes(bench.runtime.home)) == []
