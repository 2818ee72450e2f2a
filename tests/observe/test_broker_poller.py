"""What is asked beside the offsets topic is asked again, whatever was answered."""

import threading

from fleet.clock import SystemClock
from fleet.kafka_source.connections import NoAnswer
from fleet.log.readers import tail
from tests.support.waiting import until


class View:
    """Nothing is configured."""

    def configured(self):
        return {}


class Answers(tail.BrokerPoller):
    """Whatever the cluster answered: raised in turn, then all is well."""

    def __init__(self, *failures):
        super().__init__({"bootstrap.servers": "127.0.0.1:1"}, clock=SystemClock(), view=View())
        self.failures, self.well = list(failures), threading.Event()

    def _look(self, *, anew):
        if self.failures:
            raise self.failures.pop(0)
        self.well.set()


def test_an_answer_that_makes_no_sense_ends_nothing(monkeypatch, caplog):
    """It is told once, and the next question is asked."""
    monkeypatch.setattr(tail, "_EVERY", 0.01)
    odd = ValueError("no such field")
    asking = Answers(odd, odd, NoAnswer("away"), KeyError("group"))
    asking.start()
    until(asking.well.is_set, "the next question")
    asking.close()
    messages = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert messages == ["no such field", "'group'"]
