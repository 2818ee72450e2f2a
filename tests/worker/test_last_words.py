"""Whatever ends a worker is told in a sentence, to people and beside the slots."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.clock import SystemClock
from fleet.config.spec import ClusterSpec
from fleet.slots.sqlite import SqliteStore
from fleet.worker.slot.process import _Worker
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of

CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """A worker makes it its own."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before


def test_what_nobody_foresaw_is_a_sentence_too(tmp_path: Path):
    """Fault: a CA file that is no certificate ends it by a traceback, and no report says so."""
    (tmp_path / "ca.pem").write_text("this is no certificate\n")
    security = {"protocol": "SSL", "tls": {"ca_file": str(tmp_path / "ca.pem")}}
    cluster = ClusterSpec.model_validate({"bootstrap_servers": "b:1", "security": security})
    settings = settings_of(group_spec("g", topics=["t"]), bootstrap="b:1", cluster=cluster)
    worker = _Worker(worker_context(settings, name="w1"), home=tmp_path, code=None)
    code, sentence = worker.live()
    assert code == 1
    assert "KafkaException" in sentence
    assert "ssl.ca.location failed" in sentence
    (report,) = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=CLOCK).reports("g")
    assert (report.phase, report.error) == ("failed", sentence)
