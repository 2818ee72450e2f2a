"""Faults in what a member reads, waits for and commits: the rules that lose or double records."""

from tests.mutants.mutant import Mutant

_OWNING = ("tests/worker/test_owning.py",)
_POSITIONS = ("tests/worker/test_positions.py",)
_EDGES = ("tests/ranges/test_edges.py", "tests/ranges/test_wanted.py")
_LETTERS = ("tests/worker/test_letters_written.py",)
_FAILURES = ("tests/worker/test_failures.py",)

MUTANTS = (
    Mutant(
        name="member-drain-does-not-wait-for-the-batch",
        file="fleet/worker/member/membership.py",
        old='                self._cut_short("the drain")\n        if self._pipeline.busy:\n'
        "            return\n",
        new='                self._cut_short("the drain")\n',
        tests=_OWNING,
    ),
    Mutant(
        name="member-revoke-does-not-wait",
        file="fleet/worker/member/membership.py",
        old="while self._pipeline.touches(tps) or self._pipeline.unsettled & tps:",
        new="while self._pipeline.unsettled & tps:",
        tests=_OWNING,
    ),
    Mutant(
        name="member-lost-partitions-still-ours",
        file="fleet/worker/member/membership.py",
        old="            self._pipeline.interrupt()\n        self._pipeline.lose(tps)\n",
        new="            self._pipeline.interrupt()\n        self._pipeline.drop(tps)\n",
        tests=_OWNING,
    ),
    Mutant(
        name="member-every-partition-still-ours",
        file="fleet/worker/offsets/commit_metadata.py",
        old="return tuple(each for each in finished if owned.holds(each.tp, each.token))",
        new="return tuple(each for each in finished if each.token)",
        tests=_OWNING,
    ),
    Mutant(
        name="member-offset-reset-latest",
        file="fleet/worker/slot/membership_setup.py",
        old='"auto.offset.reset": "error",',
        new='"auto.offset.reset": "latest",',
        tests=_OWNING,
    ),
    Mutant(
        name="member-isolation-ignored",
        file="fleet/worker/slot/membership_setup.py",
        old='"isolation.level": worker.isolation,',
        new='"isolation.level": "read_uncommitted",',
        tests=_OWNING,
    ),
    Mutant(
        name="member-ends-of-another-isolation",
        file="fleet/worker/batch/partition_ends.py",
        old='if isolation == "read_committed"',
        new='if isolation == "read_uncommitted"',
        tests=_OWNING,
    ),
    Mutant(
        name="pipeline-commits-over-a-gap-while-busy",
        file="fleet/worker/member/pipeline.py",
        old="        if self._in_hand is not None or holds:\n            return\n",
        new="        if self._in_hand is not None or holds:\n            self._commit_gaps()\n"
        "            return\n",
        tests=_OWNING,
    ),
    Mutant(
        name="pipeline-begins-without-its-plan",
        file="fleet/worker/member/pipeline.py",
        old="        elif self._plan():\n",
        new="        else:\n",
        tests=(*_OWNING, *_POSITIONS, "tests/worker/test_begun.py"),
    ),
    Mutant(
        name="pipeline-void-batch-read-no-more",
        file="fleet/worker/member/pipeline.py",
        old="        self._rewind_onto_ranges(done, again)\n        return True\n",
        new="        return True\n",
        tests=(*_OWNING, "tests/worker/test_ill.py"),
    ),
    Mutant(
        name="pipeline-retry-for-ever",
        file="fleet/worker/member/pipeline.py",
        old="            if now - hand.since < self._patience:\n",
        new="            if now - hand.since < 0:\n",
        tests=(*_OWNING, *_POSITIONS),
        judged="A commit that may pass by itself is not tried again: the batch is run once more "
        "under the same ids, nothing is lost; only a real coordinator's move shows it "
        "(tests/worker/test_consumer_life.py, on a broker, over a minute).",
    ),
    Mutant(
        name="position-chosen-and-not-committed",
        file="fleet/worker/offsets/assigning.py",
        old="return not self.gone and self.committed != self.position",
        new="return False",
        tests=_POSITIONS,
    ),
    Mutant(
        name="position-before-the-log",
        file="fleet/worker/offsets/assigning.py",
        old="            position=max(stored.offset, first),\n",
        new="            position=stored.offset,\n",
        tests=(*_POSITIONS, *_OWNING),
    ),
    Mutant(
        name="position-drain-does-not-wait-for-its-commit",
        file="fleet/worker/member/membership.py",
        old="        if self._pipeline.unsettled and self._clock.monotonic() < self._drain_by:\n",
        new="        if self._pipeline.unsettled and self._clock.monotonic() < 0:\n",
        tests=_POSITIONS,
    ),
    Mutant(
        name="range-read-over-its-end",
        file="fleet/kafka_source/tasks.py",
        old="    if left.start <= first and last < left.end:  # nearly always\n",
        new="    if left.start <= first:\n",
        tests=_EDGES,
    ),
    Mutant(
        name="range-read-from-before-its-start",
        file="fleet/kafka_source/tasks.py",
        old="return messages[bisect_left(offsets, left.start) : bisect_left(offsets, left.end)]",
        new="return messages[: bisect_left(offsets, left.end)]",
        tests=_EDGES,
    ),
    Mutant(
        name="range-ended-early",
        file="fleet/kafka_source/tasks.py",
        old="    if position >= left.end:\n",
        new="    if position >= left.end - 1:\n",
        tests=_EDGES,
    ),
    Mutant(
        name="range-reset-jumps-to-the-end",
        file="fleet/kafka_source/tasks.py",
        old='"auto.offset.reset": "error",',
        new='"auto.offset.reset": "latest",',
        tests=_EDGES,
    ),
    Mutant(
        name="range-isolation-ignored",
        file="fleet/kafka_source/tasks.py",
        old='"isolation.level": isolation,',
        new='"isolation.level": "read_uncommitted",',
        tests=_EDGES,
    ),
    Mutant(
        name="letters-not-awaited",
        file="fleet/worker/batch/dead_letters.py",
        old="waiting = producer.flush(self._seconds + 5.0)",
        new="waiting = 0 * producer.poll(0)",
        tests=_LETTERS,
    ),
    Mutant(
        name="letters-refused-and-passed-over",
        file="fleet/worker/batch/dead_letters.py",
        old="        if refused or waiting:\n",
        new="        if waiting:\n",
        tests=_LETTERS,
    ),
    Mutant(
        name="runner-goes-on-with-a-lost-slot",
        file="fleet/worker/batch/executor.py",
        old="        if not self._still_ours():\n",
        new="        if self._still_ours is None:\n",
        tests=_FAILURES,
    ),
    Mutant(
        name="runner-spark-failure-is-an-attempt",
        file="fleet/worker/batch/executor.py",
        old="                elif is_spark_failure(error):\n",
        new="                elif is_spark_failure(error) and not pauses_left:\n",
        tests=_FAILURES,
    ),
    Mutant(
        name="runner-hangs-twice-and-goes-on",
        file="fleet/worker/batch/executor.py",
        old="                    if timeouts > 1:\n",
        new="                    if timeouts > 2:\n",
        tests=_FAILURES,
    ),
)
