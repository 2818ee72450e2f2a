"""A consumer of its own process, for what only a process suffers: SIGSTOP, SIGKILL.

`python -m tests.support.member '{"bootstrap.servers": ..., "group.id": ...}' TOPIC...`
commits every record, and prints a line when its assignment changes; SIGTERM closes it.
"""

import json
import signal
import sys

from confluent_kafka import Consumer


def main() -> None:
    """Poll until told to end."""
    going = [True]
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    config = {"enable.auto.commit": False, "log_level": 0, **json.loads(sys.argv[1])}
    consumer = Consumer(config)
    consumer.subscribe(sys.argv[2:])
    while going:
        message = consumer.poll(0.05)
        own = message is not None and message.error() is None
        if own and not config["enable.auto.commit"]:
            consumer.commit(message=message, asynchronous=True)
    consumer.close()


if __name__ == "__main__":
    main()
