"""Which files one process runs, and what comes first."""

from tests.support.needs import repository
from tests.support.scheduling import _LONG, _TOGETHER, longest_first, shared_by


def test_the_longest_name_that_fits_counts() -> None:
    """A file of a folder may share something else than the folder does."""
    assert shared_by("tests/kubernetes/test_rights.py") == "API server"
    assert shared_by("tests/kubernetes/test_unmanaged.py") == "cluster"
    assert shared_by("tests/spec/test_load.py") == "tests/spec/test_load.py"


def test_what_shares_stands_together_and_the_longest_comes_first() -> None:
    """Sums decide between groups, a file's own seconds within one."""
    seconds = [("tests/a.py", 9.0), ("tests/ranges/x.py", 2.0), ("tests/b.py", 1.0)]
    seconds += [("tests/history/y.py", 4.0), ("tests/history/y.py", 4.0)]
    assert list(longest_first(seconds)) == [
        "tests/history/y.py", "tests/ranges/x.py", "tests/a.py", "tests/b.py",
    ]  # fmt: skip


def test_the_tables_name_what_is_there() -> None:
    """A file that moved takes its line with it."""
    assert [name for name in {*_TOGETHER, *_LONG} if not (repository() / name).exists()] == []
