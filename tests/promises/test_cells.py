"""Every cell of docs/concepts/cost.md, FLEET_RUNS times (5), range, cooperative and KIP-848: a
table.

The three fleets are of one home and run beside each other, so that a cell's seconds are those of
a busy machine; FLEET_KINDS=consumer plays one of them alone. The table is printed, and written to
FLEET_TABLE where that names a file.
"""

import os
import traceback
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.ground import terms
from tests.promises.cells import CELLS, Cells, Outcome
from tests.support.workshop import Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(7200)]

RUNS = int(os.environ.get("FLEET_RUNS") or 5)
ALL_KINDS = ("range", "cooperative-sticky", "consumer")
KINDS = tuple((os.environ.get("FLEET_KINDS") or ",".join(ALL_KINDS)).split(","))
TITLES = {"consumer": "KIP-848"}
MOST = {
    "+2 workers by a synchronized join": (1, 2, 2),
    "roll all 4 workers": (0, 0, 0),
    "worker killed (-9)": (0, 0, 2),
    "-2 workers": (1, 2, 1),
    "manager killed opening 2 slots": (1, 2, 2),
    "manager killed in a roll": (0, 0, 0),
    "manager killed while 2 leave": (1, 2, 1),
}
"""Cell → most rebalances that docs/concepts/cost.md allows, for ALL_KINDS."""
BATCH = 400
"""Most records that a killed worker's batch in hand can have at 100 records a second."""
Results = dict[tuple[str, str], list[Outcome]]


@pytest.fixture
def cells(broker, unique, tmp_path: Path) -> Iterator[dict[str, Cells]]:
    """A fleet of each kind, of one home; at the end nothing of it runs."""
    made = {}
    with ending() as shops:
        for kind in KINDS:
            name = f"cell-{kind}-{unique}"
            shops.append(Workshop(tmp_path, broker.bootstrap_servers, name, **terms(kind)))
            shops[-1].create_topic(8)
            made[kind] = Cells(shops[-1], broker.broker, kind)
        yield made


def test_every_cell(cells: dict[str, Cells]):
    """No more rebalances than promised, nothing lost, nothing twice on a clean change."""
    results: Results = defaultdict(list)
    with ThreadPoolExecutor(len(cells)) as pool:
        done = [pool.submit(play, kind, each, results) for kind, each in cells.items()]
        broke = [found for each in done for found in each.result()]
    markdown = table(results)
    print(markdown)
    if path := os.environ.get("FLEET_TABLE"):
        Path(path).write_text(markdown)
    assert not broke, "\n".join(broke)
    assert all(len(results[name, kind]) == RUNS for name in CELLS for kind in KINDS)


def play(kind: str, cells: Cells, results: Results) -> list[str]:
    """All runs of one kind; what was not as promised. What breaks one kind leaves the others."""
    try:
        cells.begin()
        return play_runs(kind, cells, results)
    except Exception:  # noqa: BLE001 - told
        problem = f"{kind}: {traceback.format_exc()}"
        print(problem, flush=True)
        return [problem]


def play_runs(kind: str, cells: Cells, results: Results) -> list[str]:
    """What was not as promised."""
    broke = []
    for run in range(RUNS):
        for name in CELLS:
            outcome = cells.run(name)
            results[name, kind].append(outcome)
            print(f"run {run + 1} {TITLES.get(kind, kind)}: {name}: {outcome}", flush=True)
            most = MOST[name][ALL_KINDS.index(kind)]
            repeated = BATCH if "worker killed" in name else 0
            if outcome.rebalances > most or outcome.lost or outcome.twice > repeated:
                broke.append(f"run {run + 1} of {kind}: {name}: {outcome}, promised {most}")
    return broke


def table(results: Results) -> str:
    """Markdown: a row per cell and kind."""
    lines = [
        "| change | group | runs | limit | recorded | lost | duplicates | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in CELLS:
        for kind in KINDS:
            outcomes = results.get((name, kind))
            if not outcomes:
                continue
            most = MOST[name][ALL_KINDS.index(kind)]
            seconds = [o.seconds for o in outcomes if o.seconds is not None]
            lines.append(
                f"| {name} | {TITLES.get(kind, kind)} | {len(outcomes)} | "
                f"{'≤ ' if most > 1 else ''}{most} | {span(o.rebalances for o in outcomes)} | "
                f"{sum(o.lost for o in outcomes)} | {span(o.twice for o in outcomes)} | "
                f"{f'{min(seconds):.1f}..{max(seconds):.1f}' if seconds else ''} |"
            )
    return "\n".join(lines) + "\n"


def span(numbers) -> str:
    """min..max."""
    each = sorted(numbers)
    return str(each[0]) if each[0] == each[-1] else f"{each[0]}..{each[-1]}"
