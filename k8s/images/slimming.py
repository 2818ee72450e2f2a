"""Run in the build of an image: leaves out what no image uses.

Problem: wheels carry headers, tests, symbols and libraries of features that Fleet never imports;
Spark's jars carry native libraries of a dozen platforms; a JRE has every module. Choice: what is
left out is listed here, each with its reason. Cost: `pyarrow.flight` and `kubernetes.aio` cannot
be imported in an image.
"""

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

LEFT_OUT: Final = (
    "**/tests",
    "kubernetes/aio",  # a second client, for asyncio
    "kubernetes/client/**/__pycache__",  # workers import none of it
    "numpy/distutils",
    "numpy/f2py",
    "pyarrow/_flight.*",
    "pyarrow/_pyarrow_cpp_tests.*",
    "pyarrow/include",
    "pyarrow/libarrow_flight.*",
    "pyarrow/libarrow_python*.so",  # names for linkers, copies in a wheel
    "pyarrow/libarrow_python*.so.*.*.*",
    "pyarrow/libarrow_python_flight.*",
    "pyarrow/src",
    "pyspark/examples",
    "pyspark/jars/*",  # the folder stays: without it PySpark ends the program that imports it
    *(f"{name}/**/*.p[xy][xdi]" for name in ("numpy", "pandas", "pyarrow", "sqlalchemy")),
    "sqlalchemy/testing",
    "zstandard/_cffi.*",  # of two backends the one that nothing chooses
    "dagster_webserver/graphiql",  # a copy of what its page loads
    "dagster_webserver/webapp/build/**/*.map",
    "dagster_webserver/webapp/build/*.mp4",
)
"""Below site-packages."""
MODULES: Final = (
    "java.se",
    "jdk.charsets",
    "jdk.crypto.ec",
    "jdk.incubator.vector",  # Spark's launcher asks for it
    "jdk.jcmd",
    "jdk.jfr",
    "jdk.management",
    "jdk.management.agent",
    "jdk.naming.dns",
    "jdk.net",
    "jdk.security.auth",
    "jdk.security.jgss",
    "jdk.unsupported",
    "jdk.zipfs",
)
_THIS: Final = {
    "x86_64": re.compile(r"linux[-_/]?(64|amd64|x86[-_]64)(?!-musl)"),
    "aarch64": re.compile(r"linux[-_/]?aarch_?64(?!-musl)"),
}[platform.machine()]
_ANY: Final = re.compile(r"linux|osx|mac|darwin|win|aix|bsd|sunos", re.IGNORECASE)
_NATIVE: Final = re.compile(r"\.(so|dll|dylib|jnilib|a)$")
_JARS: Final = "pyspark/jars/"
_JAVA: Final = "openjdk-17-jre-headless"
_FEW: Final = 100_000
"""Bytes of symbols that are not worth a check of the library."""


def libraries(folder: Path) -> None:
    """Deletes what is left out of an environment, and the symbols of its libraries."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    for pattern in LEFT_OUT:
        for found in list(packages.glob(pattern)):
            if found.is_dir():
                shutil.rmtree(found, ignore_errors=True)  # with the folder around it
            else:
                found.unlink(missing_ok=True)
    for library in packages.rglob("*.so*"):
        _strip(library)


def _strip(library: Path) -> None:
    """Deletes its symbols, unless they are few or it cannot be loaded after that.

    One that patchelf changed may be damaged.
    """
    whole = library.read_bytes()
    subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    if len(whole) - library.stat().st_size < _FEW or not _can_load(library):
        library.write_bytes(whole)


def _can_load(library: Path) -> bool:
    load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(library)]
    return subprocess.run(load, capture_output=True, check=False).returncode == 0


def java(target: Path) -> None:
    """Links a Java runtime of MODULES, with the system's certificates and a class archive."""
    (home,) = Path("/usr/lib/jvm").glob("java-1.*-openjdk-*")
    target.parent.mkdir(parents=True)
    subprocess.run(
        [
            home / "bin" / "jlink", f"--add-modules={','.join(MODULES)}", f"--output={target}",
            "--no-header-files", "--no-man-pages", "--strip-java-debug-attributes",
        ],
        check=True,
    )  # fmt: skip
    shutil.copyfile("/etc/ssl/certs/java/cacerts", target / "lib" / "security" / "cacerts")
    subprocess.run([target / "bin" / "java", "-Xshare:dump"], check=True, capture_output=True)
    with (target / "packages.txt").open("w", encoding="utf-8") as listed:
        subprocess.run(["dpkg-query", "-W", _JAVA], check=True, stdout=listed)


def jars(wheels: Path, packages: Path) -> None:
    """Unpacks Spark's jars, without those of the shells and of other platforms."""
    (wheel,) = wheels.glob("pyspark-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            jar = name.removeprefix(_JARS)
            if name.startswith(_JARS) and "/" not in jar and not _is_foreign(jar, ".jar"):
                archive.extract(name, packages)
    for each in sorted((packages / _JARS).glob("*.jar")):
        _without_foreign(each)


def _without_foreign(jar: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        names = [each.filename for each in archive.infolist() if not _is_foreign(each.filename)]
        if len(names) == len(archive.namelist()):
            return
        fresh = jar.with_suffix(".fresh")
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as made:
            for each in archive.infolist():
                if each.filename in names:
                    made.writestr(each, archive.read(each))
    fresh.replace(jar)


def _is_foreign(name: str, ending: str = "") -> bool:
    """Tells whether a native library, or a jar of one, is of another platform than this."""
    if not (name.endswith(ending) if ending else _NATIVE.search(name)):
        return False
    if ending and not re.search(r"-(linux|osx|windows)-", name):
        return False
    return bool(_ANY.search(name)) and not _THIS.search(name.lower())


if __name__ == "__main__":
    command, *places = sys.argv[1:]
    match command:
        case "libraries":
            libraries(*map(Path, places))
        case "java":
            java(*map(Path, places))
        case _:
            jars(*map(Path, places))
