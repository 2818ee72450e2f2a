"""The base of the images: a small Debian, made by mmdebstrap from this machine's Debian packages.

Two of them: with Python, and with Java (only Java is taken out of that one). Versions are those of
the release that this machine's package sources name, so that a security update arrives by making
the base anew; which they were stands in the image (/opt/fleet/packages.txt). Documentation,
translations, apt and every package index stay out.
"""

import hashlib
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fleet.errors import FleetError
from fleet.system.retrying import retry
from k8s.cluster import programs

# usr-is-merged: else the package that merges /usr comes along, and with it all of Perl (47 MB).
PYTHON: Final = ("python3", "ca-certificates", "libstdc++6", "usr-is-merged")
JAVA: Final = (*PYTHON, "openjdk-17-jre-headless")
BASES: Final = {"python": PYTHON, "java": JAVA}
USER: Final = 10001
_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_EXCLUDED: Final = ("doc", "man", "locale", "info", "lintian", "bash-completion", "zoneinfo/right")
# Both run with $1 = the new root. Java's alternatives want a place for their manuals.
_BEFORE: Final = 'mkdir -p "$1/usr/share/man/man1"'
_FINISH: Final = f"""#!/bin/sh
set -eu
mkdir -p "$1/opt/fleet"
chroot "$1" dpkg-query -W > "$1/opt/fleet/packages.txt"
echo 'fleet:x:{USER}:{USER}::/tmp:/usr/sbin/nologin' >> "$1/etc/passwd"
echo 'fleet:x:{USER}:' >> "$1/etc/group"
mkdir -p "$1/var/lib/fleet" && chown {USER}:{USER} "$1/var/lib/fleet"
rm -rf "$1"/etc/apt/sources.list* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc
rm -rf "$1"/var/lib/apt/lists/* "$1"/usr/lib/apt
rm -rf "$1"/usr/share/man "$1"/usr/share/locale "$1"/usr/share/gcc
: > "$1/etc/machine-id"; : > "$1/etc/resolv.conf"; rm -f "$1/etc/hostname"
"""


def recipe(name: str) -> str:
    """What changes where a base would be made otherwise."""
    parts = repr((BASES[name], _EXCLUDED, _BEFORE, _FINISH)).encode()
    return hashlib.sha256(parts).hexdigest()[:12]


def make(name: str, made: Path) -> None:
    """Write a base as a tar. FleetError with mmdebstrap's words where that fails."""
    retry("mmdebstrap", lambda: _make(name, made))


def _make(name: str, made: Path) -> None:
    with TemporaryDirectory(dir=made.parent) as scratch:
        sources = Path(scratch) / "sources.list"
        sources.write_text(_sources(), encoding="utf-8")
        finish = Path(scratch) / "finish"
        finish.write_text(_FINISH, encoding="utf-8")
        finish.chmod(0o755)
        unfinished = Path(scratch) / "base.tar"
        done = subprocess.run(
            [
                programs.path("mmdebstrap"), "--verbose", "--mode=root", "--variant=essential",
                f"--include={','.join(BASES[name])}",
                *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in _EXCLUDED),
                "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
                f"--essential-hook={_BEFORE}",
                f"--customize-hook={finish}",
                _release(), str(unfinished), str(sources),
            ],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise FleetError(f"mmdebstrap failed: {done.stderr.strip()[-1500:]}")
        unfinished.rename(made)


def _sources() -> str:
    """Debian's own among this machine's package sources; third parties' stay out."""
    form = f"$(ORIGIN)|deb [signed-by={_KEYS}] $(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = _output("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    lines = {line.partition("|")[2] for line in listed.splitlines() if line.startswith("Debian|")}
    if not lines:
        raise FleetError(
            "apt knows no Debian sources (`apt-get update`?): the base is made of them"
        )
    return "\n".join(sorted(lines)) + "\n"


def _release() -> str:
    return _output("sh", "-c", '. /etc/os-release && printf %s "$VERSION_CODENAME"')


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise FleetError(
            f"`{' '.join(argv)}` failed ({error}): bases are made on Debian"
        ) from error
