"""Kafka's own `kafka-configs.sh`, from the jars of the embedded broker."""

import sys
from pathlib import Path

from fleet.broker import Broker

done = Broker(Path.cwd() / ".tools").tool("kafka.admin.ConfigCommand", *sys.argv[1:])
sys.stdout.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
