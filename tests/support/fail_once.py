"""Runs a command in which each step that may fail for a moment fails the first time it is run.

Problem: that builds, downloads and servers' starts are tried again shows only where they fail.
Choice: programs of the same names stand first on PATH, and a `sitecustomize` on PYTHONPATH; each
distinct step fails once, then the real one runs. A port is really taken: by a process that listens
on it. Cost: what is started without PATH or PYTHONPATH is not reached.

`python3 -m tests.support.fail_once FOLDER COMMAND...`; FOLDER/failed lists what failed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = ("apt-get", "buildah", "go", "java", "mmdebstrap")

_SHIM = """#!/bin/sh
# The real {name}, from the second time on that it is asked for the same.
step="{name}"
case "{name} $*" in
  "go build "* | "apt-get update"* | *"apt-get install "* | "mmdebstrap "* | "buildah "*)
    # Names of temporary files differ each time.
    for each in "$@"; do case $each in *tmp*) ;; *) step="$step $each" ;; esac; done ;;
  "java "*org.apache.ivy.Main*)
    previous=
    for each in "$@"; do
      [ "$previous" != -ivy ] || step="ivy $(cksum < "$each")"
      previous=$each
    done ;;
  *) exec "{real}" "$@" ;;
esac
if mkdir "{folder}/steps/$(printf %s "$step" | cksum | tr -d ' ')" 2>/dev/null; then
  printf '%s\\n' "$step" | tr '\\n' ' ' | cut -c -200 >> "{folder}/failed"
  echo "planted: Device or resource busy" >&2
  exit 1
fi
exec "{real}" "$@"
"""

_OCCUPIER = """
import select, socket, sys
taken = socket.socket(fileno=int(sys.argv[1]))
while True:
    ready = select.select([taken, sys.stdin], [], [], 300)[0]
    if taken not in ready:
        break
    taken.accept()[0].close()
"""

_SITE = """
import importlib.machinery, os, socket, subprocess, sys, zlib

FOLDER = {folder!r}
MODULES = {{"pip": ("install", "wheel", "download"), "hatchling": ("build",),
           "build": ("--wheel",), "mkdocs": ("build",)}}


def is_first(step):
    try:
        os.mkdir(f"{{FOLDER}}/steps/{{zlib.crc32(step.encode())}}")
    except FileExistsError:
        return False
    with open(f"{{FOLDER}}/failed", "a") as file:
        file.write(step[:200] + "\\n")
    return True


words = sys.orig_argv[1:]
if words[:1] == ["-m"] and set(MODULES.get(words[1], ())) & set(words):
    if is_first(" ".join(word for word in words if "tmp" not in word)):
        sys.stderr.write("planted: Device or resource busy\\n")
        sys.stderr.flush()
        os._exit(1)


def planted(free_ports):
    def chosen(count, host="127.0.0.1", candidates=None):
        ports = free_ports(count, host, candidates)
        frame = sys._getframe(1)
        if os.path.basename(frame.f_code.co_filename).startswith("test_"):
            return ports  # nothing is to listen there
        own = ("ports.py", "retrying.py", "contextlib.py")
        while os.path.basename(frame.f_code.co_filename) in own:
            frame = frame.f_back
        if frame.f_code.co_name.startswith("test_"):
            return ports  # a test of trying again, which counts itself
        where = f"{{os.path.basename(frame.f_code.co_filename)}} {{frame.f_code.co_name}}"
        if is_first(f"port of {{where}}"):
            taken = socket.create_server((host, ports[0]))
            occupiers.append(subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", {occupier!r}, str(taken.fileno())],
                stdin=subprocess.PIPE, pass_fds=[taken.fileno()], env={{}}, start_new_session=True,
            ))
            taken.close()
        return ports
    return chosen


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "fleet.system.ports":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            execute = spec.loader.exec_module
            def exec_module(module):
                execute(module)
                module.free_ports = planted(module.free_ports)
            spec.loader.exec_module = exec_module
        return spec


occupiers = []
sys.meta_path.insert(0, Finder)
"""


def plant(folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Write what fails into `folder`; the environment in which it does."""
    folder = folder.absolute()
    for name in ("steps", "bin", "python"):
        (folder / name).mkdir(parents=True)
    java = environ.get("JAVA_HOME") and f"{environ['JAVA_HOME']}/bin/java"
    for name in PROGRAMS:
        real = (java if name == "java" else None) or shutil.which(name, path=environ.get("PATH"))
        if real is None:
            continue  # a search shall find none
        shim = folder / "bin" / name
        shim.write_text(_SHIM.format(name=name, real=real, folder=folder))
        shim.chmod(0o755)
        if name == "java":  # which is looked for beside it
            (folder / "bin" / "keytool").symlink_to(Path(real).with_name("keytool"))
    site = _SITE.format(folder=str(folder), occupier=_OCCUPIER)
    (folder / "python" / "sitecustomize.py").write_text(site)
    kept = {key: value for key, value in environ.items() if key != "JAVA_HOME"}
    path = environ.get("PYTHONPATH")
    return {
        **kept,
        "PATH": f"{folder / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "PYTHONPATH": f"{folder / 'python'}{os.pathsep}{path}" if path else f"{folder / 'python'}",
    }


def failed(folder: Path) -> list[str]:
    """The steps that failed so far, as they were asked for."""
    file = folder / "failed"
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    place = Path(sys.argv[1])
    status = subprocess.run(sys.argv[2:], env=plant(place), check=False).returncode
    print(*failed(place), sep="\n", file=sys.stderr)
    sys.exit(status)
