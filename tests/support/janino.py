"""The Java compiler among PySpark's jars: tests compile their own sources where there is no JDK."""

import os

from fleet.act import spark_server

MAIN = "org.codehaus.janino.SimpleCompiler"
"""Compiles its first argument, a file, and runs the class named by the second."""


def class_path(*others: str) -> str:
    """Its jars behind these: a JVM's archive of classes fits what a class path begins with."""
    jars = spark_server.pyspark_folder() / "jars"
    own = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    return os.pathsep.join([*others, *map(str, own)])
