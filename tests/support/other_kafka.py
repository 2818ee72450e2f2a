"""The jars of another Kafka than Fleet's own, for a broker of that release.

Fetched by PySpark's Ivy as Fleet's own are, once, and not compared with sums: what is tried with
them is how Fleet does, not they.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from fleet.broker.jars import find_java
from fleet.system.home import cache_home

_SECONDS: Final = 900
_MODULE: Final = """<ivy-module version="2.0">
  <info organisation="fleet" module="other-kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default">
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{release}"/>
  </dependencies>
</ivy-module>
"""


def libs_of(release: str) -> Path:
    """What FLEET_KAFKA_LIBS is to name."""
    libs = cache_home() / "other-kafka" / release
    if libs.exists():
        return libs
    libs.parent.mkdir(parents=True, exist_ok=True)
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=libs.parent) as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_MODULE.format(release=release))
        subprocess.run(
            [
                *(str(find_java()), f"-Divy.default.ivy.user.dir={work}/ivy", "-cp", str(ivy)),
                *("org.apache.ivy.Main", "-ivy", f"{work}/ivy.xml", "-cache", f"{work}/cache"),
                *("-confs", "default", "-retrieve"),
                f"{work}/libs/[artifact]-[revision](-[classifier]).[ext]",
            ],
            check=True,
            capture_output=True,
            timeout=_SECONDS,
        )
        (work / "libs").rename(libs)
    return libs
