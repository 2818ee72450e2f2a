"""Fleet: change Kafka consumer fleets without stopping them.

Only `fleet.dagster` and `fleet.kubernetes` know Dagster and Kubernetes.
"""

__version__ = "0.1.0"
