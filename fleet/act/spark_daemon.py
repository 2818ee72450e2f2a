"""PySpark's daemon, by the name under which Spark servers of an older release start it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
