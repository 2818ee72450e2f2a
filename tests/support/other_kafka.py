"""The jars of another Kafka than Fleet's own, for a broker of that release.

Fetched by PySpark's Ivy as Fleet's own are, once, and not compared with sums: what is tried with
them is how Fleet does, not they.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from fleet.broker.jars import fetch, find_java
from fleet.system.home import cache_home

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
    module = _MODULE.format(release=release)
    with tempfile.TemporaryDirectory(dir=libs.parent) as name:
        settings = os.environ.get("FLEET_IVY_SETTINGS")
        fetch(find_java(), module, Path(name), settings=settings).rename(libs)
    return libs
