"""Each process of a run begins with other files, and leaves none out."""

from pathlib import Path

import pytest

from tests.support.sharing import begun_at

FILES = [Path(f"test_{number}.py") for number in range(10)]


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 10, 16])
def test_all_files_from_ones_own_place_on(processes: int) -> None:
    orders = [begun_at(FILES, process, processes) for process in range(processes)]
    assert all(sorted(order) == sorted(FILES) for order in orders)
    assert orders[0] == FILES
    assert len({order[0] for order in orders}) == min(processes, len(FILES))
