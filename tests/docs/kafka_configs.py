"""Kafka's own `kafka-configs.sh`, from the jars of the embedded broker."""

import sys

from tests.support.tool_server import run_once

done = run_once("kafka.admin.ConfigCommand", *sys.argv[1:])
sys.stdout.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
