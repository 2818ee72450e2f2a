"""Which process of a session runs which test, and in which order.

Problem: each process that needs a Spark server, an API server, a broker with logins or the trial
cluster's broker starts its own (5 to 15 s of CPU time each), and the file that comes last decides
how long the others idle. Choice: whole files, those that share a costly fixture in one process,
the longest first.
Cost: two tables to look after; what they lack costs time, never a result.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from xdist.scheduler import LoadFileScheduling

_TOGETHER: Final = {
    "tests/kubernetes/": "API server",
    "tests/kubernetes/test_adoption.py": "cluster",
    "tests/kubernetes/test_cluster.py": "cluster",
    "tests/kubernetes/test_images.py": "cluster",
    "tests/kubernetes/test_injected.py": "cluster",
    "tests/kubernetes/test_manager_pod.py": "cluster",
    "tests/kubernetes/test_run_jobs.py": "cluster",
    "tests/kubernetes/test_runtime_promises.py": "cluster",
    "tests/kubernetes/test_unmanaged.py": "cluster",
    "tests/k8s_store/": "API server",
    "tests/docs/test_blocks.py": "API server",
    "tests/slots/test_compare_and_set.py": "API server",
    "tests/slots/test_races.py": "API server",
    "tests/faults/test_external_owner.py": "Spark, workers",
    "tests/faults/test_late_commits.py": "Spark, workers",
    "tests/faults/test_schedules.py": "Spark, workers",
    "tests/faults/test_store_away.py": "Spark, workers",
    "tests/runtime/test_spark_python.py": "Spark, workers",
    "tests/runtime/test_spark_server.py": "Spark, workers",
    "tests/worker/": "Spark, workers",
    "tests/history/": "Spark, tables",
    "tests/membership/": "Spark, tables",
    "tests/promises/": "Spark, tables",
    "tests/ranges/": "Spark, tables",
    "tests/formats/test_decoded.py": "Spark, tables",
    "tests/testing/test_trial_on_a_cluster.py": "Spark, tables",
    "tests/security/": "Spark, tables",
    "tests/orchestration/": "a broker with little on it",
}
"""Files and folders → what they share; the longest name that fits counts."""

_LONG: Final = {
    # These mostly wait: they go first, while the others use all that the machine has.
    "tests/alerts/test_end_to_end.py": 290,
    "tests/runtime/test_supervision.py": 280,
    "tests/runtime/test_kafka_admin.py": 270,
    "tests/observe/test_pauses.py": 260,
    "tests/promises/test_promises.py": 150,
    "tests/faults/test_kills.py": 110,
    "tests/dagster_ui/test_page.py": 200,
    "tests/kubernetes/test_unmanaged.py": 200,
    "tests/kubernetes/test_runtime_promises.py": 250,
    "tests/kubernetes/test_killed_operator.py": 60,
    "tests/kubernetes/test_run_jobs.py": 60,
    "tests/kubernetes/test_manager_pod.py": 20,
    "tests/faults/test_schedules.py": 60,
    "tests/faults/test_store_away.py": 30,
    "tests/worker/test_failing.py": 30,
    "tests/worker/test_sinks.py": 20,
    "tests/sinks/test_s3.py": 5,
    "tests/broker/test_broker.py": 80,
    "tests/demo/test_demo.py": 60,
    "tests/scenarios/test_real_groups.py": 40,
    "tests/orchestration/test_definitions.py": 1,  # the longest of the unit tests
}
"""File → seconds beyond what its tests' needs say."""


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """xdist's `loadfile`, but for the files that share something."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid.partition("::")[0])


def shared_by(file: str) -> str:
    """What the file shares with others; its own name where it shares nothing."""
    fits = [name for name in _TOGETHER if file.startswith(name)]
    return _TOGETHER[max(fits, key=len)] if fits else file


def _part_of(file: str) -> str:
    """What shares something, by its folders."""
    return f"{shared_by(file)}, {file.rpartition('/')[0]}"


def longest_first(seconds: Iterable[tuple[str, float]]) -> dict[str, int]:
    """File → its place, of files by test with what each test takes, about.

    What is run together stands together, of that what is in one folder: it may share a broker.
    (xdist's own order is by number of tests, which is the reverse here.)
    """
    files: dict[str, float] = defaultdict(float)
    for file, some in seconds:
        files[file] += some
    files.update({file: _LONG[file] for file in files if file in _LONG})
    shared: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    for file, some in files.items():
        shared[shared_by(file)] += some
        folders[_part_of(file)] += some

    def place_of(file: str) -> tuple[float, str, float, str, float]:
        part, whole = _part_of(file), shared_by(file)
        return -shared[whole], whole, -folders[part], part, -files[file]

    ordered = sorted(files, key=place_of)
    return {file: place for place, file in enumerate(ordered)}
