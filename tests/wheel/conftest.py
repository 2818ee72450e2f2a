"""The wheel that all tests of this folder install."""

import sys
from pathlib import Path

import pytest

from tests.support.environments import must


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a source archive of the checkout: neither lacks a file."""
    out = tmp_path_factory.mktemp("dist")
    must([sys.executable, "-m", "build", "--no-isolation", "-o", str(out)])
    return next(out.glob("*.whl"))
