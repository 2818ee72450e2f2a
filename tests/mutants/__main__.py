"""`make mutants`: plants each fault of the table, and tells which the tests did not notice.

Exit 0: at least 95 % are killed; 1: not so; 2: the table or the tests cannot be used as they are
(stale, failing without any fault, too slow).
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.planting import LONGEST_TEST, Copy, Fault, Outcome, Ran, Stale, Verdict
from tests.mutants.table import FAULTS

ROOT = Path(__file__).parents[2]
ENOUGH = 0.95
"""Share of the faults that has to be killed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    asked = _parser().parse_args(arguments)
    chosen = [each for each in FAULTS if not asked.k or any(k in each.name for k in asked.k)]
    if not chosen:
        _say(f"no fault's name holds {' or '.join(asked.k)}; the names are in tests/mutants")
        return 2
    if asked.list:
        for fault in chosen:
            print(f"{fault.name:45} {fault.where}")
        return 0
    try:
        for fault in chosen:
            fault.planted(ROOT)
    except Stale as error:
        _say(str(error))
        return 2
    folder = Path(tempfile.mkdtemp(prefix="fleet-mutants-"))
    try:
        return _try_all(chosen, folder, asked)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("-k", action="append", default=[], help="only names that hold this")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--list", action="store_true", help="names and places, and plant nothing")
    parser.add_argument("-v", action="store_true", help="what the tests of survivors printed")
    return parser


def _try_all(chosen: Sequence[Fault], folder: Path, asked: Any) -> int:
    began = time.monotonic()
    jobs = max(1, min(asked.jobs, len(chosen)))
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(jobs):
        copies.put(Copy(ROOT, folder / f"tree-{number}"))
    sound = copies.get()
    tests = sorted({test for fault in chosen for test in fault.tests})
    _say(f"{len(chosen)} faults; first their tests without any: {len(tests)} files and tests")
    ran = sound.run(_outermost(tests), first=False)
    why = _unusable(ran)
    if why:
        _say(why)
        return 2
    _say(f"{ran.passed} pass in {ran.seconds:.0f} s, the longest {ran.longest[0]:.1f} s")
    copies.put(sound)

    def one(fault: Fault) -> Outcome:
        copy = copies.get()
        try:
            outcome = copy.try_out(fault)
        finally:
            copies.put(copy)
        _say(f"{outcome.verdict:17} {outcome.seconds:6.1f} s  {fault.name}  {outcome.by}".rstrip())
        if outcome.verdict in {Verdict.SURVIVED, Verdict.BROKEN} and asked.v:
            _say(outcome.output)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(one, chosen))
    return _told(outcomes, ran, time.monotonic() - began, asked.output)


def _outermost(tests: Sequence[str]) -> list[str]:
    """Without those that another one holds: pytest would run them twice."""
    return [
        test
        for test in tests
        if not any(
            test != other and test.startswith((f"{other}/", f"{other}::")) for other in tests
        )
    ]


def _unusable(ran: Ran) -> str:
    """Why verdicts of these tests would say nothing; empty where they would."""
    if ran.code != 0:
        failed = ", ".join(ran.failed) or "pytest itself"
        return f"{ran.output}\nthe tests fail without any fault: {failed}; mend them first"
    if ran.longest[0] > LONGEST_TEST:
        took, name = ran.longest
        return f"{name} takes {took:.0f} s, more than {LONGEST_TEST:.0f} s: name a quicker test"
    return ""


def _told(outcomes: Sequence[Outcome], sound: Ran, seconds: float, form: str) -> int:
    counts = Counter(outcome.verdict for outcome in outcomes)
    planted = len(outcomes) - counts[Verdict.SKIPPED]
    share = counts[Verdict.KILLED] / planted if planted else 0.0
    enough = share >= ENOUGH and not counts[Verdict.BROKEN]
    if form == "json":
        print(json.dumps(_as_json(outcomes, sound, share, seconds, enough=enough), indent=1))
    else:
        print(f"\n{'fault':45} {'verdict':17} {'seconds':>7}  by")
        for each in sorted(outcomes, key=lambda o: (o.verdict is Verdict.KILLED, o.fault.name)):
            print(f"{each.fault.name:45} {each.verdict:17} {each.seconds:7.1f}  {each.by}")
        what = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print(f"\n{len(outcomes)} faults in {seconds:.0f} s: {what}; {share:.1%} killed")
    for each in outcomes:
        if each.verdict in {Verdict.SURVIVED, Verdict.BROKEN}:
            _say(f"{each.fault.name} is {each.verdict}: write a test that fails on it")
    if planted and share < ENOUGH:
        _say(f"{share:.1%} killed, {ENOUGH:.0%} are asked")
    return 0 if enough else 1


def _as_json(
    outcomes: Sequence[Outcome], sound: Ran, share: float, seconds: float, *, enough: bool
) -> dict[str, Any]:
    return {
        "enough": enough,
        "killed": round(share, 4),
        "seconds": round(seconds, 1),
        "longest_test": {"seconds": round(sound.longest[0], 1), "test": sound.longest[1]},
        "faults": [
            {
                "name": each.fault.name,
                "file": each.fault.file,
                "verdict": str(each.verdict),
                "seconds": round(each.seconds, 1),
                "by": each.by or None,
            }
            for each in outcomes
        ],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
