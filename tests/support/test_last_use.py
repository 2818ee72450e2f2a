"""A server of the session ends when nobody asks any more."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.support.last_use import LastUses

@pytest.fixture(scope="session")
def kube_api():
    print("api begins")
    yield 1
    print("api ends")

@pytest.fixture(scope="session")
def made_of_it(kube_api):
    yield
    print("first what was made of it")

@pytest.fixture(params=["memory", pytest.param("worker", marks=pytest.mark.kubernetes)])
def stores(request):
    return request.param == "memory" or request.getfixturevalue("kube_api")

@pytest.fixture(scope="session")
def kube():
    return 1

@pytest.fixture(scope="session")
def quiet_broker():
    print("broker begins")
    yield
    print("broker ends")

def pytest_configure(config):
    config.addinivalue_line("markers", "kubernetes: x")
    config.pluginmanager.register(LastUses({"kube": lambda: print("all of kube ends")}))
"""
TESTS = """
import pytest

kubernetes = pytest.mark.kubernetes

@kubernetes
def test_first(made_of_it): print("first")

@kubernetes
def test_cluster(kube): print("cluster")

def test_between(quiet_broker): print("between")

def test_store(stores): print("store", stores)

def test_after(): print("after")
"""


def told(pytester: pytest.Pytester, *options: str) -> list[str]:
    """What fixtures and tests print, in order."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    root = Path(__file__).parents[2]
    pytester.syspathinsert(root)
    done = pytester.runpytest_inprocess("-q", "-s", "-p", "no:cacheprovider", *options)
    printed = [line.lstrip(".") for line in done.outlines]
    return [line for line in printed if line.split(" ")[0] in WORDS]


WORDS = {"first", "cluster", "between", "store", "after", "api", "all", "broker"}


def test_the_last_who_asks_ends_it(pytester: pytest.Pytester):
    """And before it what was made of it; by a parameter is asked, too."""
    assert told(pytester) == [
        *("api begins", "first", "cluster", "all of kube ends"),
        *("broker begins", "between", "broker ends"),
        *("store True", "store 1", "first what was made of it", "api ends", "after"),
    ]


def test_those_that_are_not_selected_are_not_waited_for(pytester: pytest.Pytester):
    """As with -k."""
    assert told(pytester, "-k", "first or after or cluster") == [
        *("api begins", "first", "first what was made of it", "api ends"),
        *("cluster", "all of kube ends", "after"),
    ]
