"""Fleet: change Kafka consumer fleets without stopping them.

The library holds no Dagster and no Kubernetes; `assets` and `k8s` build on it.
"""

__version__ = "0.1.0"
