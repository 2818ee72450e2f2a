"""Workers driven through the store, as the worker's own tests have them."""

from tests.worker.conftest import group, spark_home

__all__ = ["group", "spark_home"]
