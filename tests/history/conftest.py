"""A shared Spark server for the folder."""

from tests.worker.conftest import spark_home

__all__ = ["spark_home"]
