#!/bin/sh
# Python as Spark starts it (fleet/system/spark_python.py), without the archives of Spark's folder.
set -f # a path is no pattern
kept=
IFS=:
for each in $PYTHONPATH; do
  case ${each##*/} in
    pyspark.zip | py4j-*-src.zip) ;;
    *) kept=$kept:$each ;;
  esac
done
PYTHONPATH=${kept#:} exec "$FLEET_SPARK_PYTHON" "$@"
