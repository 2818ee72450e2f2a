"""A cluster's life: up, down, one component stopped and started again, what it is now.

What is written down is who the boundary's process is and who the components are; `ready` only
when all of it stands. An interrupted start is ended and repeated, with the API server's data
kept; `down` deletes everything.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import secrets
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import yaml

from fleet.errors import FleetError, Unreachable
from fleet.system import processes
from fleet.system.home import cache_home, read_state, write_state, write_whole
from fleet.system.processes import ProcessId
from fleet.system.retrying import retry
from k8s.cluster import boundary, components, programs
from k8s.cluster.cluster_layout import NODE, PAUSE, Layout, free_network

# The few questions that a start asks of its API server.
#
# By urllib and not by the client library: these are asked while nothing is sure to answer, and
# every failure means "not yet".


_SECONDS: Final = 5.0


class ApiQuestions:
    """One API server, as its cluster's administrator sees it."""

    def __init__(self, layout: Layout) -> None:
        config = yaml.safe_load(layout.kubeconfig.read_text(encoding="utf-8"))
        self._server = layout.server
        self._token = config["users"][0]["user"]["token"]
        self._trust = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))

    def ready(self) -> bool:
        """Whether it serves."""
        return self._get("/readyz") == "ok"

    def node_ready(self) -> bool:
        """Whether pods can start."""
        conditions = self._json(f"/api/v1/nodes/{NODE}").get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def has_service_account(self) -> bool:
        """Whether pods of the namespace `default` are admitted."""
        account = self._json("/api/v1/namespaces/default/serviceaccounts/default")
        trusted = self._json("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
        return bool(account) and bool(trusted)

    def _json(self, path: str) -> dict[str, Any]:
        text = self._get(path)
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def _get(self, path: str) -> str | None:
        request = urllib.request.Request(  # noqa: S310 - https, to our own address
            f"{self._server}{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        try:
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=_SECONDS, context=self._trust
            ) as answer:
                text: str = answer.read().decode()
                return text
        except (urllib.error.URLError, OSError):
            return None


# Images into the cluster's containerd: archives, and the one that holds a pod's namespaces.
#
# Nothing is pulled in this cluster, so `imagePullPolicy` is to be IfNotPresent or Never, and a tag
# other than `latest`.


def load(outer: ProcessId, archive: IO[bytes]) -> list[str]:
    """Import an OCI or docker archive; the names that it brought."""

    def attempt() -> str:
        archive.seek(0)
        done = subprocess.run(
            boundary.enter(outer, *_ctr("images", "import", "-")),
            stdin=archive, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise FleetError(f"containerd refused the image: {done.stderr.strip()[-400:]}")
        return done.stdout

    output = retry("importing an image", attempt)
    return [line.split()[1] for line in output.splitlines() if line.startswith("unpacking")]


def names(outer: ProcessId) -> list[str]:
    """The images that pods can run."""
    listed = boundary.run(outer, *_ctr("images", "ls", "--quiet"))
    return [name for name in listed.splitlines() if "/" in name and "@" not in name]


def contents(outer: ProcessId) -> set[str]:
    """The digests of all blobs that are there: no archive needs to bring them again."""
    return set(boundary.run(outer, *_ctr("content", "ls", "--quiet")).split())


def load_pause(outer: ProcessId) -> None:
    """The image of sandboxes, of one static program; nothing where it is there."""
    if PAUSE not in names(outer):
        with tempfile.TemporaryFile() as archive:
            archive.write(_image(Path(programs.path("pause")), PAUSE))
            archive.seek(0)
            load(outer, archive)


def _ctr(*words: str) -> list[str]:
    return [programs.path("ctr"), "--namespace=k8s.io", *words]


def _image(program: Path, name: str) -> bytes:
    """An OCI archive with one program and nothing else."""
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_text = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described("application/vnd.oci.image.config.v1+json", config_text),
        "layers": [_described("application/vnd.oci.image.layer.v1.tar", layer)],
    }
    manifest_text = json.dumps(manifest).encode()
    described = _described("application/vnd.oci.image.manifest.v1+json", manifest_text)
    described["annotations"] = {"io.containerd.image.name": name}
    index = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    blobs = {f"blobs/sha256/{_digest(b)[7:]}": b for b in (layer, config_text, manifest_text)}
    version = b'{"imageLayoutVersion": "1.0.0"}'
    return _tar({"oci-layout": version, "index.json": index, **blobs}, mode=0o644)


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _tar(members: dict[str, bytes], *, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


SCHEMA: Final = 1
_GRACE_SECONDS: Final = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The cluster as it is now; `components`: name → pid on this machine, None where it is not."""

    running: bool
    kubeconfig: Path
    host_address: str
    """The machine, as pods reach it."""
    node_address: str
    pods: str
    folder: Path
    components: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    layout: Layout
    outer: ProcessId | None = None
    ready: bool = False
    components: Mapping[str, ProcessId] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.outer is not None and processes.alive(self.outer)

    def process(self, component: str) -> ProcessId | None:
        known = self.components.get(component)
        return known if known is not None and processes.alive(known) else None


class TrialCluster:
    """The cluster under `home`/cluster; any number of these may look at the same one."""

    def __init__(self, home: Path) -> None:
        self._folder = home.absolute() / "cluster"
        self._file = self._folder / "state.json"
        self._lock = home.absolute() / ".cluster.lock"

    def up(self, *, wait: float = 120.0, say: Say = lambda _: None) -> ClusterStatus:
        """Start what does not run and wait until the node is ready; nothing to do is fine.

        Raises FleetError where a program is missing, this is no root, a component ends while it
        starts (with its last words); Unreachable where it takes more than `wait` seconds.
        """
        lacks = programs.missing()
        if lacks:
            raise FleetError("; ".join(lacks))
        deadline = time.monotonic() + wait
        with self._alone():
            state = self._load()
            if state is None or not state.alive or not state.ready:
                say("starting Kubernetes " + programs.version())
                state = self._afresh(state)
            state = self._start(state, components.FIRST)
            api = ApiQuestions(state.layout)
            self._until(state, deadline, "the API server is not ready", api.ready)
            assert state.outer is not None
            load_pause(state.outer)
            state = self._start(state, tuple(self._arguments(state)))
            self._until(state, deadline, "the node is not ready", api.node_ready)
            self._until(state, deadline, "no service account", api.has_service_account)
            state = replace(state, ready=True)
            self._save(state)
            return _status(state)

    def down(self) -> None:
        """End everything and delete it; FleetError names what does not go away."""
        with self._alone():
            state = self._load()
            if state is not None:
                boundary.end(state.layout, state.outer or boundary.find(self._folder))
                left = boundary.leftovers(state.layout)
                if left:
                    raise FleetError(
                        f"still exists after the cluster was stopped: {', '.join(left)}"
                    )
            shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self, component: str) -> None:
        """End one component, as a failed node of the control plane would."""
        with self._alone():
            process = self._known(component).process(component)
            if process is not None:
                processes.end(process, grace=_GRACE_SECONDS)

    def kill(self, component: str) -> None:
        """SIGKILL one component."""
        with self._alone():
            process = self._known(component).process(component)
            if process is not None:
                processes.end(process, grace=0.0)

    def start(self, component: str, *, wait: float = 60.0) -> None:
        """Start a component that was ended; returns when the API server answers."""
        with self._alone():
            state = self._start(self._known(component), (component,))
            if component in components.FIRST:
                api, until = ApiQuestions(state.layout), time.monotonic() + wait
                self._until(state, until, "the API server is not ready", api.ready)

    def load(self, archive: IO[bytes]) -> list[str]:
        """Import an image archive for pods to run; the names it brought."""
        return load(self._outer(), archive)

    def contents(self) -> set[str]:
        """Digests of image blobs that need not be brought again."""
        return contents(self._outer())

    def images(self) -> list[str]:
        """The images that pods can run."""
        return names(self._outer())

    def run(self, *argv: str) -> str:
        """Run a program of this machine inside the cluster's namespaces; what it printed."""
        return boundary.run(self._outer(), *argv)

    def status(self) -> ClusterStatus | None:
        """As it is now; None where there is none."""
        state = self._load()
        return None if state is None else _status(state)

    def _outer(self) -> ProcessId:
        state = self._load()
        if state is None or state.outer is None or not state.alive:
            raise FleetError(f"no cluster runs in {self._folder}; run `make cluster` to start one")
        return state.outer

    def _known(self, component: str) -> _State:
        state = self._load()
        if state is None or not state.alive:
            raise FleetError(f"no cluster runs in {self._folder}; run `make cluster` to start one")
        if component not in self._arguments(state):
            known = ", ".join(self._arguments(state))
            raise FleetError(f"no component {component} exists; choose one of {known}")
        return state

    def _afresh(self, state: _State | None) -> _State:
        """New namespaces; what ran in old ones is ended. To the node it is like a reboot."""
        with _choosing():
            if state is not None:
                boundary.end(state.layout, state.outer or boundary.find(self._folder))
            layout = Layout(
                folder=self._folder,
                name=state.layout.name if state else f"fleet-{secrets.token_hex(3)}",
                network=free_network(state.layout.network if state else None),
            )
            state = _State(layout=layout)
            self._save(state)
            components.ensure(layout)
            for name, text in components.files(layout).items():
                write_whole(layout.configs / name, text)
            outer = boundary.start(layout)
            state = replace(state, outer=outer)
            self._save(state)
            boundary.furnish(layout, outer)
        return state

    def _start(self, state: _State, wanted: tuple[str, ...]) -> _State:
        """Start those that do not run, and write down who they are."""
        assert state.outer is not None
        for name, argv in self._arguments(state).items():
            if name in wanted and state.process(name) is None:
                process = processes.spawn(
                    boundary.enter(state.outer, *argv),
                    log=state.layout.log(name),
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run"},
                    cwd=Path("/"),
                )
                state = replace(state, components={**state.components, name: process})
                self._save(state)
        return state

    def _arguments(self, state: _State) -> Mapping[str, list[str]]:
        return components.arguments(state.layout, programs.path)

    def _until(self, state: _State, deadline: float, what: str, done: Callable[[], bool]) -> None:
        while not done():
            ended = [name for name in state.components if state.process(name) is None]
            if ended and not state.ready:
                raise FleetError(f"{ended[0]} stopped; {_last_words(state.layout, ended[0])}")
            if time.monotonic() >= deadline:
                raise Unreachable(f"{what}: see {state.layout.log('kubelet').parent}")
            time.sleep(0.1)

    def _load(self) -> _State | None:
        kept = read_state(self._file, schema=SCHEMA)
        if kept is None:
            return None
        try:
            return _from_json(kept, self._folder)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FleetError(
                f"{self._file} is not the state of a cluster ({error!r}); stop its processes and "
                f"move {self._folder} away"
            ) from error

    def _save(self, state: _State) -> None:
        write_state(self._file, _as_json(state), schema=SCHEMA)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time; outside the folder, which goes when the cluster goes."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def _choosing() -> Iterator[None]:
    """No two clusters of this machine choose their network at once."""
    folder = cache_home() / "kubernetes"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".network.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _last_words(layout: Layout, component: str) -> str:
    file = layout.log(component)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    return f"its last words ({file}):\n" + "\n".join(lines)


def _status(state: _State) -> ClusterStatus:
    layout = state.layout
    pids = {name: each.pid for name in state.components if (each := state.process(name))}
    return ClusterStatus(
        running=state.alive and state.ready,
        kubeconfig=layout.kubeconfig,
        host_address=layout.host_address,
        node_address=layout.node_address,
        pods=layout.pods,
        folder=layout.folder,
        components={name: pids.get(name) for name in state.components},
    )


def _as_json(state: _State) -> dict[str, Any]:
    return {
        "name": state.layout.name,
        "network": state.layout.network,
        "outer": None if state.outer is None else state.outer.as_json(),
        "ready": state.ready,
        "components": {name: each.as_json() for name, each in state.components.items()},
    }


def _from_json(kept: Mapping[str, Any], folder: Path) -> _State:
    outer = kept["outer"]
    return _State(
        layout=Layout(folder=folder, name=str(kept["name"]), network=str(kept["network"])),
        outer=None if outer is None else ProcessId.from_json(outer),
        ready=bool(kept["ready"]),
        components={
            str(name): ProcessId.from_json(each) for name, each in kept["components"].items()
        },
    )
