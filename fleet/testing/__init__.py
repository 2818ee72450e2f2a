"""What a job's own tests need: a batch written by hand, and a Spark of their own.

`pytest_plugins = ["fleet.testing.plugin"]` in a test module gives the fixtures `fleet_spark` and
`fleet_batch`; without pytest, `make_batch` and `local_spark` are the same. docs/start/first-job.md
has both.
"""

from fleet.testing.sample_batch import SampleBatch, local_spark, make_batch

__all__ = ["SampleBatch", "local_spark", "make_batch"]
