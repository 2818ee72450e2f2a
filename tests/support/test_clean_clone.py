"""A run that opens the clone's own home fails, whatever its tests came to."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
from pathlib import Path
from tests.support.clean_clone import CleanClone

def pytest_configure(config):
    config.pluginmanager.register(CleanClone(Path(".fleet").absolute()))
"""


@pytest.mark.parametrize(
    ("before", "made", "code"),
    [
        pytest.param((), "fleet.db", 1, id="a fleet"),
        pytest.param((), ".cluster.lock", 0, id="a cluster to try"),
        pytest.param(("fleet.db",), "fleet.db", 0, id="a clone that is used"),
    ],
)
def test_a_home_in_the_clone(
    pytester: pytest.Pytester, before: tuple[str, ...], made: str, code: int
) -> None:
    """A database where there was none is named; `make cluster` leaves no fleet's home."""
    home = Path(pytester.path, ".fleet")
    home.mkdir()
    for name in before:
        (home / name).touch()
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(f"def test_it(): open('.fleet/{made}', 'a').close()")
    ran = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert ran.ret == code
    ran.stdout.fnmatch_lines(
        ["*.fleet has fleet.db now*", "*1 passed*"] if code else ["*1 passed*"]
    )
