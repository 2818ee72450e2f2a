"""Functions of the entrypoint's module run where there is no such module, in their own revision."""

import subprocess
import sys
from pathlib import Path

import pytest

from fleet.worker.batch.entrypoint import load
from fleet.worker.batch.pickle_by_value import pickle_by_value

THERE = """
import pickle, sys
made = pickle.loads(sys.stdin.buffer.read())
print(made(20))
"""
PACKAGE = """
from {name}.deep.rates import RATE, taxed

def price(n):
    return taxed(n) + RATE

def process(df, context):
    pass
"""


def elsewhere(pickled: bytes) -> str:
    """What it returns in a process that knows neither the code's folder nor Fleet's."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", THERE], input=pickled, capture_output=True, check=False
    )
    return done.stdout.decode().strip() or done.stderr.decode()


def test_a_package_on_the_path_goes_along(tmp_path: Path, unique: str):
    """The function, what it names, and what that names, through packages."""
    from pyspark import cloudpickle

    name = f"carried_{unique}"
    deep = tmp_path / name / "deep"
    deep.mkdir(parents=True)
    for folder in (tmp_path / name, deep):
        (folder / "__init__.py").write_text("")
    (deep / "rates.py").write_text("RATE = 2\n\ndef taxed(n):\n    return n * RATE\n")
    (tmp_path / name / "jobs.py").write_text(PACKAGE.format(name=name))
    entrypoint = load(f"{name}.jobs:process", [str(tmp_path)])
    price = sys.modules[f"{name}.jobs"].price
    assert f"No module named '{name}'" in elsewhere(cloudpickle.dumps(price))
    assert pickle_by_value(entrypoint.name)
    assert elsewhere(cloudpickle.dumps(price)) == "42"


@pytest.mark.parametrize("entrypoint", ["json:dumps", "yaml:dump", "fleet.demo.orders:process"])
def test_what_is_installed_is_named_only(entrypoint: str):
    """Of the standard library, of site-packages, and Fleet itself, wherever it lies."""
    load(entrypoint) if entrypoint.startswith("fleet") else __import__(entrypoint.partition(":")[0])
    assert not pickle_by_value(entrypoint)
