"""Runs the embedded Kafka: jars by PySpark's Ivy, 1 or 3 KRaft nodes, logs."""

from fleet.broker.embedded import Broker, BrokerStatus, NodeStatus, embedded_bootstrap
from fleet.broker.node_config import Logins

__all__ = ["Broker", "BrokerStatus", "Logins", "NodeStatus", "embedded_bootstrap"]
