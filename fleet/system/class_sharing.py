"""Class data sharing (JEP 350): a JVM that starts in less than half of its time.

Problem: until a Spark server has answered its first query it uses 10 CPU seconds, a broker until
it listens 4; most of that reads and verifies classes, the same ones each time. Choice: the first
JVM of a kind that ends in good order writes its classes into an archive in the cache folder, and
its successors map that file (4 and 2.5 s then). It needs no setting, and nothing depends on
it: the JVM itself checks that the archive fits its version, every jar's size and time, and its
own sums, and otherwise starts as if there were none. (A JVM that maps a file cut short crashes
before it gets to its sums: the size is part of the name.) Cost: 4 s of CPU once, at the end of
that first JVM, for which its parent waits, and 50 MB (Kafka) or 180 MB (Spark) of disk
for each Java and folder of jars; the eight of a kind that were used last stay.
"""

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from fleet.system.home import cache_home

_MAGIC: Final = 0xF00BABA8.to_bytes(4, "little")
"""The JVM writes an archive's first page last, so whatever begins like this is whole."""
_KEPT: Final = 8
"""How many archives of a kind stay: those of other checkouts and Javas that were used last."""
WRITING_SECONDS: Final = 60.0
"""What a JVM is given at its end to write its archive: a busy machine's 4 s of CPU."""
SPARK: Final = "spark"
"""The kind of Spark's servers."""
_SUBMIT: Final = "SPARK_SUBMIT_OPTS"
_AT_EXIT: Final = "-XX:ArchiveClassesAtExit="
# For JVMs that know none of these; an archive that does not fit is no news, since it saves time
# only; its sums cost 0.04 s.
_ALWAYS: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:cds*=off", "-XX:+VerifySharedSpaces")


def options(
    name: str, java: str | Path, jars: Path, *, cache: Path | None = None, may_write: bool = True
) -> list[str]:
    """What to start `java` with so that it uses, or at its end writes, the archive for `jars`.

    `name` is the kind of server, since each loads other classes; `jars` the folder of its class
    path. Empty where the cache cannot be written or there is no such Java, or where there is no
    archive yet and it may write none.
    """
    folder = (cache or cache_home()) / "classes"
    try:
        wanted = f"{name}-{_key(java, jars)}"
        folder.mkdir(parents=True, exist_ok=True)
        archive = _archive(folder, wanted)
        _tidy(folder, name)
        if archive is not None:
            os.utime(archive)
            return [*_ALWAYS, f"-XX:SharedArchiveFile={archive}"]
        if not may_write or not os.access(folder, os.W_OK):
            return []
    except OSError:
        return []
    return [*_ALWAYS, f"{_AT_EXIT}{folder / wanted}.{uuid.uuid4().hex[:8]}.new"]


def java_of_spark(environ: Mapping[str, str]) -> str:
    """What `spark-submit` starts, there or not: JAVA_HOME's, else the one on PATH."""
    home = environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@contextlib.contextmanager
def of_spark_server(
    jars: Path, *, environ: MutableMapping[str, str] = os.environ, cache: Path | None = None
) -> Iterator[None]:
    """A JVM that PySpark starts meanwhile maps what a Spark server of the same jars wrote.

    `spark-submit` reads its variable beside all that users set for their driver, and before it.
    """
    found = options(SPARK, java_of_spark(environ), jars, cache=cache, may_write=False)
    before = environ.get(_SUBMIT)
    environ[_SUBMIT] = " ".join([*found, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            environ.pop(_SUBMIT, None)
        else:
            environ[_SUBMIT] = before


def writes(arguments: Iterable[str]) -> bool:
    """Whether a JVM that is started so writes an archive at its end."""
    return any(_AT_EXIT in each for each in arguments)


def _key(java: str | Path, jars: Path) -> str:
    """One archive for each Java and folder of jars, as installed now."""
    found = shutil.which(str(java))
    if found is None:
        raise FileNotFoundError(java)
    program = Path(found).resolve()
    parts: list[object] = [program, program.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _archive(folder: Path, wanted: str) -> Path | None:
    """The archive in use; else the first that a JVM wrote to its end, under its lasting name."""
    for file in folder.glob(f"{wanted}.*.jsa"):
        if file.name == f"{wanted}.{file.stat().st_size}.jsa":
            for other in folder.glob(f"{wanted}.*.new"):  # a JVM that still writes it loses nothing
                other.unlink(missing_ok=True)
            return file
        file.unlink(missing_ok=True)
    for file in folder.glob(f"{wanted}.*.new"):
        with file.open("rb") as opened:
            if opened.read(len(_MAGIC)) == _MAGIC:
                os.fsync(opened.fileno())
                return file.replace(folder / f"{wanted}.{file.stat().st_size}.jsa")
    return None


def _tidy(folder: Path, name: str) -> None:
    """Delete all archives of this kind but those used last."""
    used: list[tuple[float, Path]] = []
    for file in folder.glob(f"{name}-*"):
        with contextlib.suppress(OSError):  # another process deletes too
            used.append((file.stat().st_mtime, file))
    for _, file in sorted(used, reverse=True)[_KEPT:]:
        file.unlink(missing_ok=True)
