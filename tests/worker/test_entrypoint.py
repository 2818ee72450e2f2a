"""The user's function: found, refused with a reason, called in its own shape."""

import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import ConfigError
from fleet.worker.batch.entrypoint import load, takes_batch_id
from fleet.worker.batch.pickle_by_value import pickle_by_value
from tests.support.batch_parts import context_of


def with_context(df, context): ...
def with_batch_id(df, batch_id): ...
def with_epoch_id(df, epoch_id): ...
def with_default(df, context, table="x"): ...
def with_anything(*args): ...
def with_one(df): ...
def with_three(df, context, more): ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (with_context, False),
        (with_batch_id, True),
        (with_epoch_id, True),
        (with_default, False),
        (with_anything, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_shape(function, expected: bool):
    """The second parameter's name decides: foreachBatch's gets an int."""
    assert takes_batch_id(function, "job:f") is expected


@pytest.mark.parametrize("function", [with_one, with_three])
def test_other_shapes_are_refused(function):
    """The message says which shapes there are."""
    with pytest.raises(ConfigError, match=r"process\(df, context\)"):
        takes_batch_id(function, "job:f")


def test_load_and_call(tmp_path: Path):
    """python_path finds the module, `setup` is picked up, foreachBatch functions get an int."""
    (tmp_path / "wk_job_a.py").write_text(
        "seen = []\ndef setup(spark): pass\ndef process(df, batch_id): seen.append(batch_id)\n"
    )
    entrypoint = load("wk_job_a:process", [str(tmp_path)])
    entrypoint(None, context_of(batch_id=42))
    import wk_job_a

    assert wk_job_a.seen == [42]
    assert entrypoint.setup is not None


@pytest.mark.parametrize(
    ("name", "source", "match"),
    [
        ("wk_job_b:missing", "def process(df, context): ...", "it has process"),
        ("wk_job_c:process", "import nothing_like_this", "cannot be imported"),
        ("wk_job_none:process", None, "cannot be imported"),
    ],
    ids=["no such function", "import fails", "no such module"],
)
def test_bad_entrypoints(tmp_path: Path, name: str, source: str | None, match: str):
    """What is wrong with an entrypoint is said before anything starts."""
    if source is not None:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(source)
    with pytest.raises(ConfigError, match=match):
        load(name, [str(tmp_path)])


def test_a_module_that_ends_the_process_is_refused(tmp_path: Path):
    """As one that cannot be imported: a script without `if __name__ == "__main__"`."""
    (tmp_path / "script_like.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ConfigError, match=r"script_like cannot be imported .*SystemExit\(3\)"):
        load("script_like:process", [str(tmp_path)])


# --- functions of the entrypoint's module run where there is no such module, in their own revisi


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
