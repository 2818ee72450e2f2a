"""Run at the end of an image's build: prints its contents as CycloneDX 1.6.

Debian packages are those of dpkg's own lists (of the base, and of the JDK that Java was linked
from), Python's those that the environment names, jars those beside PySpark. Nothing is looked up.
"""

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (Path("/opt/fleet/packages.txt"), Path("/opt/java/packages.txt"))
_JAR: Final = re.compile(r"^(.+?)-(\d[\w.]*(?:-[\w.]+)*)\.jar$")


def components() -> Iterator[dict[str, Any]]:
    """Yields one component for each package."""
    lists = [each.read_text(encoding="utf-8") for each in PACKAGES if each.exists()]
    for line in "".join(lists).splitlines():
        name, version = line.split("\t")
        plain, _, arch = name.partition(":")
        yield _component(plain, version, f"pkg:deb/debian/{plain}@{version}", arch=arch)
    for each in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        yield _component(name, each.version, f"pkg:pypi/{name}@{each.version}")
    for jar in sorted(p for folder in sys.path for p in Path(folder).glob("pyspark/jars/*.jar")):
        if found := _JAR.match(jar.name):
            yield _component(
                found[1], found[2], f"pkg:generic/{found[1]}@{found[2]}", file=jar.name
            )


def _component(name: str, version: str, purl: str, **more: str) -> dict[str, Any]:
    shown = [{"name": f"fleet:{key}", "value": value} for key, value in more.items() if value]
    found: dict[str, Any] = {"type": "library", "name": name, "version": version, "purl": purl}
    return {**found, "bom-ref": purl, **({"properties": shown} if shown else {})}


def document() -> dict[str, Any]:
    """The whole document; the same for the same contents."""
    found = {each["bom-ref"]: each for each in components()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [found[key] for key in sorted(found)],
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
