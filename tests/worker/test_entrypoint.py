"""The user's function: found, refused with a reason, called in its own shape; its failures are told
with their place, once, without secrets.
"""

import logging
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from fleet.config.settings import WorkerSettings
from fleet.errors import ConfigError
from fleet.system.code import examine_source
from fleet.worker.batch.entrypoint import (
    MOST_CHARACTERS,
    JobErrors,
    imported_from,
    load,
    pickle_by_value,
    takes_batch_id,
    truncate_middle,
)
from fleet.worker.events import catch_job_logs
from fleet.worker.login_files import known_secrets
from tests.support.batch_parts import context_of
from tests.support.declared import group_spec, settings_of

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


@pytest.mark.parametrize("shape", [*NUMBER, *REFUSED])
def test_other_shapes_are_refused(shape: str, tmp_path: Path, unique: str):
    """The message says which shapes there are, and that nothing one worker counts grows over all.

    A plan refuses them too, where the source alone says so; the rest is the worker's to refuse.
    """
    name = written(tmp_path, shape, unique)
    module, _, function = name.partition(":")
    told = r"process\(df, context\), .*batch: BatchContext\)"
    if shape in NUMBER:
        told = r"no number grows .* the ends of context\.ranges"
    with pytest.raises(ConfigError, match=told):
        load(name, [str(tmp_path)])
    if shape in NUMBER:
        assert takes_batch_id(getattr(sys.modules[module], function), "")
    refused = pytest.raises(ConfigError, match=r"process\(df, context\)")
    if "(" in shape:
        unseen = shape in {"(df, n: Number)", "(df, n: Any)"}
        with nullcontext() if unseen else refused:
            examine_source(tmp_path / f"{module}.py", entrypoint=name, group="g")


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

def expected_cost(n):
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
    expected_cost = sys.modules[f"{name}.jobs"].expected_cost
    assert f"No module named '{name}'" in elsewhere(cloudpickle.dumps(expected_cost))
    assert pickle_by_value(entrypoint.name)
    assert elsewhere(cloudpickle.dumps(expected_cost)) == "42"


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
    assert elsewhere(cloudpickle.dumps(sys.modules[f"etl_{unique}"].expected_cost)) == "42"
    assert {helper.name, f"etl_{unique}"} <= set(imported_from([tmp_path]))
    assert imported_from([tmp_path / "other"]) == []


@pytest.mark.parametrize("entrypoint", ["json:dumps", "yaml:dump", "fleet.demo.orders:process"])
def test_what_is_installed_is_named_only(entrypoint: str):
    """Of the standard library, of site-packages, and Fleet itself, wherever it lies."""
    load(entrypoint) if entrypoint.startswith("fleet") else __import__(entrypoint.partition(":")[0])
    assert not pickle_by_value(entrypoint)


# --- a failure of the job ---------------------------------------------------------------------


JOB = """
import json


def parse(text):
    return json.loads(text)["amount"]


def process(df, context):
    return parse(df)
"""
IN_A_TASK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent \
call last):
  File "/home/me/job.py", line 12, in amount_of
    raise ValueError(f"bad amount {x}")
ValueError: bad amount 0
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/home/me/elsewhere.py", line 99, in nobody
"""


@pytest.fixture
def job(tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"job_{unique}"
    (tmp_path / f"{name}.py").write_text(JOB)
    return load(f"{name}:process", [str(tmp_path)])


def raised(job: Any, text: object) -> Exception:
    with pytest.raises((KeyError, ValueError)) as caught:
        job(text, None)
    return caught.value


def test_an_error_is_told_with_the_file_and_line_of_the_job(job: Any, unique: str) -> None:
    """Of the traceback the job's frames and what they called, none of ours; once per place."""
    said: list[str] = []
    errors = JobErrors(say=said.append)
    line = errors.describe(raised(job, '{"amuont": 1}'))
    assert line == f"KeyError: 'amount' (job_{unique}.py:6 in parse)"
    (text,) = said
    assert f'job_{unique}.py", line 10, in process' in text
    assert "batch/entrypoint.py" not in text
    errors.describe(raised(job, '{"amuont": 2}'))
    assert len(said) == 1, "raised at the same place: told once"
    errors.describe(raised(job, "{"))  # in the json module, called by the same line
    assert len(said) == 2
    assert f"(job_{unique}.py:6 in parse)" in said[1]
    assert "decoder.py" in said[1]


def test_of_a_task_the_traceback_of_sparks_worker_is_told() -> None:
    """The error's own text has it; the stack of the JVM is left out."""

    def collect() -> None:
        raise RuntimeError(IN_A_TASK)

    said: list[str] = []
    with pytest.raises(RuntimeError) as caught:
        collect()
    line = JobErrors(say=said.append).describe(caught.value)
    assert line == "ValueError: bad amount 0 (job.py:12 in amount_of)"
    assert "nobody" not in said[0]


def test_a_module_that_cannot_be_imported_is_told_with_its_line(
    tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the frames of the import system."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"broken_{unique}"
    (tmp_path / f"{name}.py").write_text("import json\nLIMIT = int('none')\n")
    said: list[str] = []
    errors = JobErrors(say=said.append)
    with pytest.raises(ConfigError, match=rf"\({name}\.py:2 in <module>\)") as caught:
        load(f"{name}:process", [str(tmp_path)], describe=errors.describe)
    assert "importlib" not in said[0]
    assert errors.traceback_in(str(caught.value)) is not None


def test_a_sentence_of_another_failure_has_no_traceback(job: Any) -> None:
    """The report of a worker that ends for another reason does not blame the job."""
    errors = JobErrors(say=lambda _: None)
    line = errors.describe(raised(job, "{"))
    assert errors.traceback_in(f"orders-1 is quarantined at offset 7: {line}") is not None
    assert errors.traceback_in("another process uses the instance id orders-1") is None


def test_a_long_traceback_keeps_its_end() -> None:
    """Where the error is."""
    text = truncate_middle("first\n" + "x" * 10_000 + "\nKeyError: 'id'")
    assert len(text) <= MOST_CHARACTERS
    assert text.startswith("first")
    assert text.endswith("KeyError: 'id'")


def secretive(unique: str) -> WorkerSettings:
    worker = {
        "entrypoint": "job:process",
        "env": {"DB": "${DB}", "PLAIN": "written-in-the-file"},
    }
    settings = settings_of(group_spec(f"g-{unique}", worker=worker, topics=["t"]))
    security = {
        "protocol": "SASL_PLAINTEXT",
        "sasl": {"mechanism": "PLAIN", "username": "ada", "password_env": "KAFKA_PW"},
    }
    cluster = type(settings.cluster).model_validate({"name": "main", "security": security})
    return settings.model_copy(update={"cluster": cluster})


@pytest.mark.parametrize("password", ["db-hush", "a@b/db-hush", "a%40db-hush"])
def test_what_the_settings_know_as_secret_is_in_no_sentence(unique: str, password: str) -> None:
    """The login, what `worker.env` refers to, and the password inside of an address."""
    environ = {
        "KAFKA_PW": "kafka-hush",
        "DB": f"postgres://ada:{password}@host/x",
        "PLAIN": "written-in-the-file",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": "spark-hush",
    }
    said: list[str] = []
    errors = JobErrors(say=said.append, secrets=known_secrets(secretive(unique), environ))
    told = f"kafka-hush, {environ['DB']}, {unquote(password)}, spark-hush, written-in-the-file"
    line = errors.describe(ValueError(f"no login with {told}"))
    assert "hush" not in line + said[0] + str(errors.traceback_in(line))
    assert "written-in-the-file" in line, "what stands in fleet.yaml is no secret"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 290 + "p@ss'wörd-1234", id="cut in the middle"),
        pytest.param("postgresql://ada:p%40ss%27w%C3%B6rd-1234@host/x", id="in an address"),
        pytest.param('{"password": "p@ss\'w\\u00f6rd-1234"}', id="as JSON"),
        pytest.param("bad line MIIEvQIBADANBgkqhkiG9w0", id="a line of a key"),
    ],
)
def test_a_secret_is_found_however_it_is_written(text: str) -> None:
    """In the sentence, the log and the traceback; no half of it either."""
    said: list[str] = []
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END PRIVATE KEY-----"
    errors = JobErrors(say=said.append, secrets=["p@ss'wörd-1234", key])
    line = errors.describe(ValueError(text))
    everything = line + said[0] + str(errors.traceback_in(line)) + errors.line(ValueError(text))
    assert not [part for part in ("p@s", "p%40", "rd-1", "MIIE") if part in everything]
    assert "***" in line


def test_what_the_job_logs_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its level and its logger's name, from the level asked for; libraries keep quiet."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level, said = root.level, []
    try:
        catch_job_logs("info", say=said.append)
        logging.getLogger("orders.job").info("%d rows", 3)
        logging.getLogger("orders.job").debug("not wanted")
        logging.getLogger("urllib3.connectionpool").info("not wanted")
        try:
            raise KeyError("id")
        except KeyError:
            logging.getLogger("orders.job").exception("skipped one")
    finally:
        root.setLevel(level)
    assert said[0] == "INFO orders.job: 3 rows"
    assert said[1].startswith("ERROR orders.job: skipped one\nTraceback")
    assert len(said) == 2
