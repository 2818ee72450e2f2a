"""Faults in what a worker reads, runs and commits."""

from tests.mutants.mutant import Mutant

_COUNTS = "tests/worker/test_counts_and_tokens.py"
_PIPELINE = ("tests/worker/test_commit_metadata.py", _COUNTS)
_BATCHES = ("tests/worker/test_batches.py", "tests/worker/test_batch_bounds.py")
_CULPRITS = ("tests/worker/test_poison_search.py", "tests/worker/test_suspects.py", _COUNTS)

MUTANTS = (
    # --- commits and positions -------------------------------------------------------------
    Mutant(
        name="worker-every-partition-still-ours",
        file="fleet/worker/offsets/commit_metadata.py",
        old="return self._tokens.get(tp) == token",
        new="return tp in self._tokens",
        tests=_PIPELINE,
    ),
    Mutant(
        name="worker-commit-under-another-member",
        file="fleet/worker/offsets/commit_metadata.py",
        old="if member_then is not None and member_now != member_then:",
        new="if member_then is not None and member_now is None:",
        tests=_PIPELINE,
    ),
    Mutant(
        name="worker-token-given-twice",
        file="fleet/worker/offsets/commit_metadata.py",
        old="        self._last += 1\n        self._tokens[tp] = self._last",
        new="        self._last = len(self._tokens) + 1\n        self._tokens[tp] = self._last",
        tests=_PIPELINE,
    ),
    Mutant(
        name="worker-plan-of-another-version-believed",
        file="fleet/worker/offsets/commit_metadata.py",
        old='return plan if isinstance(plan, dict) and plan.get("v") == 1 else {}',
        new="return plan if isinstance(plan, dict) else {}",
        tests=_PIPELINE,
    ),
    # --- inline batches -----------------------------------------------------------------------
    Mutant(
        name="batches-refetched-records-kept",
        file="fleet/worker/batch/batches.py",
        old="known = bisect_left(offsets, part.position)",
        new="known = 0 if not part.offsets else bisect_left(offsets, part.start)",
        tests=_BATCHES,
    ),
    Mutant(
        name="batches-replay-cut-at-position",
        file="fleet/worker/batch/batches.py",
        old="end = part.position if part.replay_to is None else part.replay_to",
        new="end = part.position",
        tests=_BATCHES,
    ),
    Mutant(
        name="batches-replay-does-not-go-alone",
        file="fleet/worker/batch/batches.py",
        old="            return self._cut(replaying)",
        new="            return self._cut(self._parts)",
        tests=_BATCHES,
    ),
    Mutant(
        name="batches-gap-with-records-waiting",
        file="fleet/worker/batch/batches.py",
        old="if part.end_seen and not waiting and part.position > part.start:",
        new="if part.end_seen and part.position > part.start:",
        tests=_BATCHES,
    ),
    Mutant(
        name="batches-small-one-closed-while-busy",
        file="fleet/worker/batch/batches.py",
        old="if not self.full and (busy or not waited):",
        new="if not self.full and not waited:",
        tests=_BATCHES,
    ),
    Mutant(
        name="batches-dropped-partition-still-counted",
        file="fleet/worker/batch/batches.py",
        old="                self._count -= len(part.messages)\n",
        new="",
        tests=_BATCHES,
    ),
    # --- ranges -----------------------------------------------------------------------------
    Mutant(
        name="ranges-named-beyond-what-may-be-read",
        file="fleet/worker/batch/ranges.py",
        old="max(0, self.look.end - self.position)",
        new="max(0, self.look.high - self.position)",
        tests=("tests/ranges/test_cutting.py",),
    ),
    Mutant(
        name="ranges-replay-before-its-look",
        file="fleet/worker/batch/ranges.py",
        old="            if any(part.look is None for part in replays.values()):\n"
        "                return ()\n",
        new="",
        tests=("tests/ranges/test_cutting.py",),
    ),
    Mutant(
        name="ranges-position-not-moved-behind-batch",
        file="fleet/worker/batch/ranges.py",
        old="part.position, part.replay_to = end, None",
        new="part.replay_to = None",
        tests=("tests/ranges/test_cutting.py",),
    ),
    Mutant(
        name="ranges-outside-of-the-log-unnoticed",
        file="fleet/worker/batch/ranges.py",
        old="if not look.first <= part.position <= look.high:",
        new="if part.position > look.high:",
        tests=("tests/ranges/test_cutting.py",),
    ),
    Mutant(
        name="ranges-what-one-leaves-is-nobodys",
        file="fleet/worker/batch/ranges.py",
        old="share = -(-left // (len(ascending) - done))",
        new="share = -(-limit // len(ascending))",
        tests=("tests/ranges/test_cutting.py",),
    ),
    Mutant(
        name="ranges-last-piece-left-out",
        file="fleet/kafka_source/pieces.py",
        old="size = max(least, -(-total // max(1, tasks)))",
        new="size = max(least, total // max(1, tasks))",
        tests=("tests/ranges/test_cutting.py",),
    ),
    Mutant(
        name="ranges-back-inline-without-seek",
        file="fleet/worker/batch/adaptive_reader.py",
        old="                consumer.seek(KafkaPartition(tp.topic, tp.partition, position))\n",
        new="                KafkaPartition(tp.topic, tp.partition, position)\n",
        tests=("tests/ranges/test_switch.py",),
    ),
    # --- failures of records --------------------------------------------------------------
    Mutant(
        name="culprits-suspect-not-asked-again",
        file="fleet/worker/batch/poison_search.py",
        old="        for seconds in self._rests:\n            self._rest(seconds)\n            outcomes",
        new="        for seconds in self._rests[1:]:\n            self._rest(seconds)\n            outcomes",
        tests=_CULPRITS,
    ),
    Mutant(
        name="culprits-poison-without-a-witness",
        file="fleet/worker/batch/poison_search.py",
        old="        if failed and not self._witness:\n            return PoisonFound(ill=self._error)\n",
        new="",
        tests=_CULPRITS,
    ),
    Mutant(
        name="culprits-part-without-records-is-a-witness",
        file="fleet/worker/batch/poison_search.py",
        old="            self._witness = self._holds(part)\n",
        new="            self._witness = True\n",
        tests=_CULPRITS,
    ),
    Mutant(
        name="begun-condemned-after-one-end-alone",
        file="fleet/worker/member/crash_search.py",
        old="self.end - self.start == 1 and self.tries >= ALONE",
        new="self.end - self.start == 1 and self.tries >= 1",
        tests=("tests/worker/test_begun.py", _COUNTS),
    ),
    Mutant(
        name="begun-cut-one-end-later",
        file="fleet/worker/member/crash_search.py",
        old="if begun.until is None and begun.tries < TOGETHER:",
        new="if begun.until is None and begun.tries <= TOGETHER:",
        tests=("tests/worker/test_begun.py", _COUNTS),
    ),
    Mutant(
        name="begun-count-of-another-range",
        file="fleet/worker/member/crash_search.py",
        old="tries=begun.tries if begun.next == end else 0",
        new="tries=begun.tries",
        tests=("tests/worker/test_begun.py", _COUNTS),
    ),
    Mutant(
        name="culprits-flood-goes-to-dead-letters",
        file="fleet/worker/batch/poison_search.py",
        old="if letters is not None and len(found) > room:",
        new="if letters is not None and len(found) > room + WITHOUT_WITNESS:",
        tests=_CULPRITS,
    ),
    Mutant(
        name="culprits-narrowing-does-not-end",
        file="fleet/worker/batch/poison_search.py",
        old="            if not self._in_time():\n",
        new="            if not self._in_time() and not letters:\n",
        tests=_CULPRITS,
    ),
)
