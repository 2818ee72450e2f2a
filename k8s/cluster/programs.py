"""The cluster's programs: Kubernetes and its name server from Go modules, the rest from packages.

Built once into ~/.cache/fleet/kubernetes/VERSION/bin; FLEET_KUBERNETES chooses the minor version.
Where modules come from is Go's own configuration (GOPROXY). Programs are renamed into place when
all are whole; a build that was cut off goes on from what it had compiled.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fleet.errors import FleetError
from fleet.system.home import cache_home, write_whole
from fleet.system.retrying import retry

VERSIONS: Final = {"1.36": "1.36.3", "1.37": "1.37.2"}
"""Minor version that the tests run on → the release that is built."""
DEFAULT: Final = "1.36"
"""Its modules are those of go.mod; those of another are in go-MINOR.mod."""
_UPSTREAM: Final = "k8s.io/kubernetes/cmd"
BUILT: Final = {
    "pause": "./pause",
    "kube-apiserver": f"{_UPSTREAM}/kube-apiserver",
    "kube-controller-manager": f"{_UPSTREAM}/kube-controller-manager",
    "kubectl": f"{_UPSTREAM}/kubectl",
    "kube-scheduler": f"{_UPSTREAM}/kube-scheduler",
    "kubelet": f"{_UPSTREAM}/kubelet",
    "kube-proxy": f"{_UPSTREAM}/kube-proxy",
    "dns": "./dns",
    "helm": "helm.sh/helm/v3/cmd/helm",
}
_MODULES: Final = {"helm": "helm/go.mod"}
"""Program → its own module file: others are not rebuilt for its versions."""
PACKAGED: Final = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
"""Program → Debian package: what a cluster needs."""
TOOLS: Final = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
"""What images need beside it."""
_QUICK_COMPILE: Final = "-dwarf=false -l"
"""Without debug information and inlining they compile in two thirds of the time."""
_QUICK_COMPILER: Final = {"GOGC": "800", "GOMEMLIMIT": "2GiB"}
"""Each compiler collects its garbage late: a fifth less."""
_PROGRESS_EVERY: Final = 500
CNI: Final = Path("/usr/lib/cni")
_SOURCES: Final = Path(__file__).parent

Say = Callable[[str], None]


def minor() -> str:
    """Returns the minor version that FLEET_KUBERNETES names; FleetError if none is built of it."""
    named = os.environ.get("FLEET_KUBERNETES") or DEFAULT
    if named not in VERSIONS:
        raise FleetError(
            f"FLEET_KUBERNETES={named} names no version that can be built; choose one of "
            f"{', '.join(VERSIONS)}"
        )
    return named


def version() -> str:
    """Returns the release that is built and run."""
    return VERSIONS[minor()]


def folder() -> Path:
    """Where the built programs are."""
    return cache_home() / "kubernetes" / version() / "bin"


def path(name: str) -> str:
    """The absolute path of a program of the cluster; FleetError where it is not there."""
    built = folder() / name
    found = str(built) if built.exists() else shutil.which(name, path=_search_path())
    if found is None:
        raise FleetError(f"no {name}: {_remedy(name)}")
    return found


def missing() -> list[str]:
    """What is not there, each with what to do."""
    names = [name for name in BUILT if not (folder() / name).exists()]
    names += [name for name in PACKAGED if shutil.which(name, path=_search_path()) is None]
    lacks = [f"no {name}: {_remedy(name)}" for name in names]
    if not (CNI / "bridge").exists():
        lacks.append(f"no {CNI}/bridge: {_remedy('containernetworking-plugins')}")
    return lacks


def missing_tools() -> list[str]:
    """What is not there of what images are built with, each with what to do."""
    return [
        f"no {name}: {_remedy(name)}"
        for name in TOOLS
        if shutil.which(name, path=_search_path()) is None
    ]


def build(say: Say) -> None:
    """Build what is not built from these sources yet. FleetError with Go's words where it fails."""
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [name for name in BUILT if not _is_built(target, name)]
        if wanted:
            say(f"building {', '.join(wanted)} for Kubernetes {version()}")
            fresh = target / ".new"
            fresh.mkdir(exist_ok=True)
            go = _find_go()
            for modules in dict.fromkeys(map(_modules, wanted)):
                packages = [BUILT[n] for n in wanted if _modules(n) == modules]
                build = partial(_build, go, packages, fresh, say, modules=modules)
                retry("go build", build)
            for name in wanted:
                (fresh / name).replace(target / name)
                write_whole(_stamp(target, name), _digest(name))
            shutil.rmtree(fresh)
        # A gigabyte or two that only another version would use, and that would not.
        shutil.rmtree(_go_folder(), ignore_errors=True)


def _is_built(target: Path, name: str) -> bool:
    return (target / name).exists() and _read(_stamp(target, name)) == _digest(name)


def _stamp(target: Path, name: str) -> Path:
    return target / f".{name}.sources"


def _find_go() -> str:
    go = shutil.which("go")
    if go is None:
        raise FleetError("no go: building Kubernetes needs Go 1.26 or newer on PATH")
    return go


def _modules(name: str) -> Path:
    """Returns the module file of a program; the file of checksums is beside it."""
    usual = "go.mod" if minor() == DEFAULT else f"go-{minor()}.mod"
    return _SOURCES / _MODULES.get(name, usual)


def _build(go: str, packages: Sequence[str], target: Path, say: Say, *, modules: Path) -> None:
    """One command for all: while one is linked, which takes one core, others are compiled."""
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{version()}"
    with subprocess.Popen(
        [
            *(go, "build", f"-modfile={modules.name}", "-v", "-trimpath"),
            *(f"-gcflags=all={_QUICK_COMPILE}", "-ldflags", flags, "-o", f"{target}/", *packages),
        ],
        cwd=modules.parent,
        env={
            **os.environ,
            **_QUICK_COMPILER,
            "GOCACHE": str(_go_folder() / "build"),
            "GOMODCACHE": str(_go_folder() / "mod"),
            "GOFLAGS": "-buildvcs=false -modcacherw -mod=readonly",
            "CGO_ENABLED": "0",
        },
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        errors = _errors(running.stderr, say)
    if running.returncode != 0:
        raise FleetError(f"go build {' '.join(packages)} failed:\n{errors}")


def _errors(lines: Iterable[str], say: Say) -> str:
    """Returns the end of Go's output; a line with only a package's name counts as progress."""
    errors, compiled = "", 0
    for line in lines:
        if " " in line.strip():
            errors = f"{errors}{line}"[-2000:]
            continue
        compiled += 1
        if compiled % _PROGRESS_EVERY == 0:
            say(f"  {compiled} packages compiled")
    return errors


def _go_folder() -> Path:
    return cache_home() / "go"


def _digest(name: str) -> str:
    modules = _modules(name)
    files = [modules, modules.with_suffix(".sum")]
    if name in {"dns", "pause"}:
        files.append(_SOURCES / name / "main.go")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


def _search_path() -> str:
    """PATH and where a distribution keeps the programs of root."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _remedy(name: str) -> str:
    if name in BUILT:
        return "`make cluster` builds it"
    return f"`make deps`, or install the package {(PACKAGED | TOOLS).get(name, name)}"
