"""Faults in what a member reads, waits for and commits: the rules that lose or double records."""

from tests.mutants.mutant import faults

_OWNING = ("tests/worker/test_owning.py",)
_POSITIONS = ("tests/worker/test_positions.py",)
_EDGES = ("tests/ranges/test_edges.py", "tests/ranges/test_wanted.py")
_LETTERS = ("tests/worker/test_letters_written.py",)
_FAILURES = ("tests/worker/test_failures.py",)

MUTANTS = faults(
    {
        ("fleet/worker/member/membership.py", _OWNING): {
            "member-drain-does-not-wait-for-the-batch": """                self._cut_short("the drain")[-
        if self._pipeline.busy:
            return-]""",
            "member-revoke-does-not-wait": "while self._pipeline.[-touches(tps) or self._pipeline.-]unsettled & tps:",
            "member-lost-partitions-still-ours": """            self._pipeline.interrupt()
        self._pipeline.[-lose-]{+drop+}(tps)""",
        },
        ("fleet/worker/offsets/commit_metadata.py", _OWNING): {
            "member-every-partition-still-ours": "return tuple(each for each in finished if [-owned.holds(each.tp, each.token)-]{+each.token+})",
        },
        ("fleet/worker/slot/membership_setup.py", _OWNING): {
            "member-offset-reset-latest": '"auto.offset.reset": "[-error-]{+latest+}",',
            "member-isolation-ignored": '"isolation.level": [-worker.isolation-]{+"read_uncommitted"+},',
        },
        ("fleet/worker/batch/partition_ends.py", _OWNING): {
            "member-ends-of-another-isolation": 'if isolation == "[-read_committed-]{+read_uncommitted+}"',
        },
        ("fleet/worker/member/pipeline.py", _OWNING): {
            "pipeline-commits-over-a-gap-while-busy": """        if self._in_hand is not None or holds:
            {+self._commit_gaps()
            +}return""",
        },
        (
            "fleet/worker/member/pipeline.py",
            (*_OWNING, *_POSITIONS, "tests/worker/test_begun.py"),
        ): {
            "pipeline-begins-without-its-plan": "[-elif self._plan()-]{+else+}:",
        },
        ("fleet/worker/member/pipeline.py", (*_OWNING, "tests/worker/test_ill.py")): {
            "pipeline-void-batch-read-no-more": """        [-self._rewind_onto_ranges(done, again)
        -]return True""",
        },
        ("fleet/worker/member/pipeline.py", (*_OWNING, *_POSITIONS)): {
            "pipeline-retry-for-ever": "if now - hand.since < [-self._patience-]{+0+}:",
        },
        ("fleet/worker/offsets/assigning.py", _POSITIONS): {
            "position-chosen-and-not-committed": "return [-not self.gone and self.committed != self.position-]{+False+}",
        },
        ("fleet/worker/offsets/assigning.py", (*_POSITIONS, *_OWNING)): {
            "position-before-the-log": "position=[-max(-]stored.offset,[- first),-]",
        },
        ("fleet/worker/member/membership.py", _POSITIONS): {
            "position-drain-does-not-wait-for-its-commit": "if self._pipeline.unsettled and self._clock.monotonic() < [-self._drain_by-]{+0+}:",
        },
        ("fleet/kafka_source/tasks.py", _EDGES): {
            "range-read-over-its-end": "if left.start <= first[- and last < left.end:  # nearly always-]{+:+}",
            "range-read-from-before-its-start": "return messages[[-bisect_left(offsets, left.start) -]: bisect_left(offsets, left.end)]",
            "range-ended-early": "if position >= left.end{+ - 1+}:",
            "range-reset-jumps-to-the-end": '"auto.offset.reset": "[-error-]{+latest+}",',
            "range-isolation-ignored": '"isolation.level": [-isolation-]{+"read_uncommitted"+},',
        },
        ("fleet/worker/batch/dead_letters.py", _LETTERS): {
            "letters-not-awaited": "waiting = [-producer.flush(self._seconds + 5.-]{+0 * producer.poll(+}0)",
            "letters-refused-and-passed-over": "if [-refused or -]waiting:",
        },
        ("fleet/worker/batch/executor.py", _FAILURES): {
            "runner-goes-on-with-a-lost-slot": "if[- not-] self._still_ours[-()-]{+ is None+}:",
            "runner-spark-failure-is-an-attempt": "elif is_spark_failure(error){+ and not pauses_left+}:",
            "runner-hangs-twice-and-goes-on": "if timeouts > [-1-]{+2+}:",
        },
    },
    judged={
        "pipeline-retry-for-ever": "A commit that may pass by itself is not tried again: the batch is run once more under the same ids, nothing is lost; only a real coordinator's move shows it (tests/worker/test_consumer_life.py, on a broker, over a minute).",
    },
)
