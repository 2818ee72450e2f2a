"""docs/rebalance-table.md and benchmarks/json.md say what `benchmarks rebalance-table` says."""

import csv

from benchmarks.__main__ import benchmarks
from benchmarks.rebalance_table import (
    SIZES,
    CellKey,
    Outcome,
    as_json,
    in_order,
    markdown,
    read_cells,
    tally,
)
from fleet import cli
from tests.support.json_contract import BENCHMARKS, documented, shape
from tests.test_repo import ROOT

DATA = ROOT / "docs" / "data" / "rebalance-table.csv"


def test_json_has_the_documented_shape() -> None:
    """Every key that is printed stands in benchmarks/json.md with its kind, and no other."""
    documents = documented("python -m benchmarks rebalance-table -o json", BENCHMARKS)
    assert shape(
        as_json(
            [tally(CellKey("join", "range", "dynamic", "one", 10), 1, [Outcome(1, 2.0, 1.0, 0.5)])]
        )
    ) == shape(documents)


def test_the_page_is_written_from_its_data() -> None:
    """docs/rebalance-table.md, by `python -m tests.reference.pages`; sizes are the command's."""
    cells = read_cells(DATA)
    assert {each.members for each in cells} <= set(SIZES)
    assert cells == in_order(cells)
    with DATA.open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 45 * len({each.members for each in cells})
    page = (ROOT / "docs" / "rebalance-table.md").read_text(encoding="utf-8")
    assert page.endswith(markdown(cells))


def test_the_pages_data_is_what_the_model_says(tmp_path) -> None:
    """Its smallest group, played again with the same seeds."""
    path = tmp_path / "data.csv"
    assert (
        cli.run(["rebalance-table", "--members", "10", "--data", str(path)], command=benchmarks)
        == 0
    )
    assert read_cells(path) == [each for each in read_cells(DATA) if each.members == 10]
