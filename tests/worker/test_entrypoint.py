"""The user's function: found, refused with a reason, called in its own shape."""

import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import ConfigError
from fleet.system.code import examine_source
from fleet.worker.batch.entrypoint import imported_from, load, pickle_by_value, takes_batch_id
from tests.support.batch_parts import context_of

MODULE = """
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NewType, Optional

from fleet.model.batch_context import BatchContext
from fleet.model.batch_context import BatchContext as Given

if TYPE_CHECKING:
    from elsewhere import BatchContext as Elsewhere, Frame

Number = NewType("Number", int)


class Job:
    def method(self, df, context): ...
    def numbered(self, df, epoch: int): ...
    def __call__(self, df, ctx): ...


class Later:
    async def __call__(self, df, context): ...


def plain(function):
    def called(*args, **kwargs):
        return function(*args, **kwargs)

    return called


def wrapped(function):
    return functools.wraps(function)(plain(function))


@wrapped
def original(df, context): ...


def with_table(df, context, table): ...


job = Job()
method = job.method
numbered = job.numbered
later = Later()
hidden = plain(original)
small = lambda df, context: None
small_number = lambda df, batch_id: None
filled = functools.partial(with_table, table="x")
emptied = functools.partial(with_table, context=None)
builtin = print
"""
"""What jobs may look like, each as `<name> = ...` or as `def <name>(...)` of a module."""
CONTEXT = (
    *("(df, context)", "(df, ctx)", "(df, context, table='x')", "(df, context=None)"),
    *("(df, /, context, *more, **named)", "(df, batch: BatchContext)", "(df, n: 'BatchContext')"),
    *("(df, batch_id: BatchContext)", "(df, n: Optional[BatchContext])", "(df, n: Given)"),
    *("(df: Frame, n: BatchContext | None)", "(df: Frame, context: Any)"),
    *("original", "job", "method", "small", "filled"),
)
NUMBER = (
    *("(df, batch_id)", "(df, epoch_id)", "(df, batchId)", "(df, epochId=0)"),
    *("(df, n: int)", "(df, _: 'int')", "(df, context: int)", "(df, n: Optional[int] = None)"),
    *("(df, n: int | None)", "(df, n: Number)", "numbered", "small_number"),
)
REFUSED = (
    *("()", "(df)", "(df, context, more)", "(df, *, context)", "(df, context, *, table)"),
    *("(df, epoch)", "(df, id)", "(df, batchid)", "(df, n)", "(df, *context)", "(*args)"),
    *("(df, n: Any)", "(df, **context)", "hidden", "emptied", "builtin", "later"),
    *("async (df, context)", "generator (df, context)"),
)


def written(folder: Path, shape: str, unique: str) -> str:
    """The entrypoint of a module with that function."""
    module, name = f"shaped_{unique}", shape
    text = MODULE
    if "(" in shape:
        name, kind = "process", shape.partition("(")[0]
        text += f"{'async ' if kind == 'async ' else ''}def process{shape.removeprefix(kind)}:\n"
        text += "    yield 1\n" if kind == "generator " else "    return 1\n"
    (folder / f"{module}.py").write_text(text)
    return f"{module}:{name}"


@pytest.mark.parametrize("shape", CONTEXT)
def test_a_context_is_taken(shape: str, tmp_path: Path, unique: str):
    """By its annotation, else by its name; plan and worker agree."""
    name = written(tmp_path, shape, unique)
    load(name, [str(tmp_path)])(None, context_of())
    examine_source(tmp_path / f"{name.partition(':')[0]}.py", entrypoint=name, group="g")


@pytest.mark.parametrize("shape", NUMBER)
def test_a_number_is_refused_with_what_to_use_instead(shape: str, tmp_path: Path, unique: str):
    """Nothing that one worker counts grows over all of them."""
    name = written(tmp_path, shape, unique)
    with pytest.raises(ConfigError, match=r"no number grows .* the ends of context\.ranges"):
        load(name, [str(tmp_path)])
    assert takes_batch_id(getattr(sys.modules[name.partition(":")[0]], name.partition(":")[2]), "")


@pytest.mark.parametrize("shape", REFUSED)
def test_other_shapes_are_refused(shape: str, tmp_path: Path, unique: str):
    """The message says which shapes there are."""
    name = written(tmp_path, shape, unique)
    with pytest.raises(ConfigError, match=r"process\(df, context\), .*batch: BatchContext\)"):
        load(name, [str(tmp_path)])


@pytest.mark.parametrize("shape", [each for each in (*NUMBER, *REFUSED) if "(" in each])
def test_a_plan_refuses_them_too(shape: str, tmp_path: Path, unique: str):
    """Where the source alone says so; the rest is the worker's to refuse."""
    name = written(tmp_path, shape, unique)
    file = tmp_path / f"{name.partition(':')[0]}.py"
    if shape in {"(df, n: Number)", "(df, n: Any)"}:
        examine_source(file, entrypoint=name, group="g")
        return
    with pytest.raises(ConfigError, match=r"process\(df, context\)"):
        examine_source(file, entrypoint=name, group="g")


def test_setup_is_found(tmp_path: Path):
    """Beside the function."""
    (tmp_path / "wk_job_a.py").write_text("def setup(spark): pass\ndef process(df, ctx): ...\n")
    assert load("wk_job_a:process", [str(tmp_path)]).setup is not None


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


@pytest.mark.parametrize("package", [True, False], ids=["package", "without init"])
def test_what_is_imported_from_beside_goes_along(package: bool, tmp_path: Path, unique: str):
    """A task of an executor runs the helper's code of the worker that asked."""
    from pyspark import cloudpickle

    helper = tmp_path / f"helper_{unique}"
    helper.mkdir()
    (helper / "rates.py").write_text("RATE = 2\n\ndef taxed(n):\n    return n * RATE\n")
    if package:
        (helper / "__init__.py").write_text("")
    (tmp_path / f"etl_{unique}.py").write_text(
        PACKAGE.format(name=helper.name).replace("deep.", "")
    )
    entrypoint = load(f"etl_{unique}:process", [str(tmp_path)])
    assert pickle_by_value(entrypoint.name)
    assert elsewhere(cloudpickle.dumps(sys.modules[f"etl_{unique}"].price)) == "42"
    assert {helper.name, f"etl_{unique}"} <= set(imported_from([tmp_path]))
    assert imported_from([tmp_path / "other"]) == []


@pytest.mark.parametrize("entrypoint", ["json:dumps", "yaml:dump", "fleet.demo.orders:process"])
def test_what_is_installed_is_named_only(entrypoint: str):
    """Of the standard library, of site-packages, and Fleet itself, wherever it lies."""
    load(entrypoint) if entrypoint.startswith("fleet") else __import__(entrypoint.partition(":")[0])
    assert not pickle_by_value(entrypoint)
