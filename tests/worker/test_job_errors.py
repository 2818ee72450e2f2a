"""A failure of the job is told with its place, once, without secrets; its logging arrives."""

import logging
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from fleet.config.settings import WorkerSettings
from fleet.errors import ConfigError
from fleet.worker.batch.entrypoint import MOST_CHARACTERS, JobErrors, bounded, load
from fleet.worker.events import catch_job_logs
from fleet.worker.login_files import known_secrets
from tests.support.declared import group_spec, settings_of

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
    line = errors.told(raised(job, '{"amuont": 1}'))
    assert line == f"KeyError: 'amount' (job_{unique}.py:6 in parse)"
    (text,) = said
    assert f'job_{unique}.py", line 10, in process' in text
    assert "entrypoint.py" not in text
    errors.told(raised(job, '{"amuont": 2}'))
    assert len(said) == 1, "raised at the same place: told once"
    errors.told(raised(job, "{"))  # in the json module, called by the same line
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
    line = JobErrors(say=said.append).told(caught.value)
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
        load(f"{name}:process", [str(tmp_path)], told=errors.told)
    assert "importlib" not in said[0]
    assert errors.traceback_in(str(caught.value)) is not None


def test_a_sentence_of_another_failure_has_no_traceback(job: Any) -> None:
    """The report of a worker that ends for another reason does not blame the job."""
    errors = JobErrors(say=lambda _: None)
    line = errors.told(raised(job, "{"))
    assert errors.traceback_in(f"orders-1 is quarantined at offset 7: {line}") is not None
    assert errors.traceback_in("another process uses the instance id orders-1") is None


def test_a_long_traceback_keeps_its_end() -> None:
    """Where the error is."""
    text = bounded("first\n" + "x" * 10_000 + "\nKeyError: 'id'")
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
    line = errors.told(ValueError(f"no login with {told}"))
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
    line = errors.told(ValueError(text))
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
