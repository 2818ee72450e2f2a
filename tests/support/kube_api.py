"""A scratch API server: etcd and kube-apiserver on loopback, no nodes, ready in four seconds.

For what needs a real server and no pods: compare-and-set, watches, roles. It can be stopped,
killed and started again on the same state.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fleet.clock import SystemClock
from fleet.kubernetes.client.api import Api, Request, connect, transmit
from fleet.system.ports import PortTaken, free_ports, says_taken
from fleet.system.retrying import retry
from k8s.cluster import programs

ADMIN = "admin"
GROUPS = {ADMIN: "system:masters", "worker": "", "manager": "", "reader": ""}
"""Users, by their tokens too: `worker` may nothing until a test binds a role to it."""


def pod_of(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The pod that a Deployment's controller would make."""
    template = deployment["spec"]["template"]
    meta = {**template["metadata"], "name": deployment["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


class KubeApi:
    """One etcd and one kube-apiserver of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = self._etcd_port = self._peer_port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._etcd: subprocess.Popen[bytes] | None = None
        self.controllers: subprocess.Popen[bytes] | None = None
        """The controller manager beside it, where one runs."""
        self._tokens: dict[str, str] = {}
        """Of users that are ServiceAccounts."""
        self._write_files()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    # --- life -------------------------------------------------------------------------------

    def start(self) -> "KubeApi":
        """Start what does not run, and wait until the server is ready."""
        if self.port:
            self._start()
        else:
            retry("starting the scratch API server", self._start_on_free_ports, on=PortTaken)
        return self

    def _start_on_free_ports(self) -> None:
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        try:
            self._start()
        except AssertionError as error:
            if not says_taken(str(error)):
                raise
            self._end()
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)
            raise PortTaken(str(error)) from error

    def _start(self) -> None:
        if self._etcd is None:
            self._etcd = self._spawn("etcd", self._etcd_arguments())
            self._wait(lambda: self._etcd_call("maintenance/status", {}), 20)
        if self._server is None:
            self._server = self._spawn("kube-apiserver", self._server_arguments())
        self._wait(self._ready, 60)

    def kill_server(self) -> None:
        """The API server is killed; etcd keeps the state."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def freeze(self) -> None:
        """The server answers nothing, its connections stand. On a busy machine its threads go on
        for a moment after the signal: they are waited for.
        """
        self._server.send_signal(signal.SIGSTOP)
        self._wait(self._stands, 20)

    def _stands(self) -> None:
        """AssertionError while a thread of the server is not stopped."""
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{self._server.pid}/task").glob("*/stat")
        ]
        assert set(states) <= {"T", "Z"}, states

    def thaw(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End both and forget the state."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        for process in (self._server, self._etcd):
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        self._server = self._etcd = None

    def compact(self) -> None:
        """Etcd forgets all old versions."""
        answer = self._etcd_call("kv/range", {"key": base64.b64encode(b"\0").decode()})
        revision = answer["header"]["revision"]
        self._etcd_call("kv/compaction", {"revision": revision, "physical": True})

    # --- ways in ----------------------------------------------------------------------------

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A file for this user."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self._certs / "apiserver.crt")}
        context = {"cluster": "scratch", "user": user, "namespace": "default"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "scratch",
            "clusters": [{"name": "scratch", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens.get(user, user)}}],
            "contexts": [{"name": "scratch", "context": context}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def api(self, namespace: str, user: str = ADMIN) -> Api:
        """A namespace, as this user sees it."""
        environ = {"KUBECONFIG": str(self.kubeconfig(user))}
        return connect(namespace=namespace, context=None, environ=environ, clock=SystemClock())

    def account(self, namespace: str, account: str, *, pod: Mapping[str, Any] | None = None) -> str:
        """A user of `api` and `kubeconfig` with a token of that ServiceAccount, as a pod has it."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if pod is not None:
            meta = pod["metadata"]
            bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            spec["boundObjectRef"] = bound
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec,
        }  # fmt: skip
        token = self.post(path, asked)["status"]["token"]
        user = f"{namespace}-{account}-{uuid.uuid4().hex[:6]}"
        self._tokens[user] = str(token)
        return user

    def namespace(self, *, enforce: str = "privileged") -> str:
        """A new one; enforce: its Pod Security Standard."""
        name = f"test-{uuid.uuid4().hex[:10]}"
        labels = {"pod-security.kubernetes.io/enforce": enforce}
        self.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        return name

    def grant(self, namespace: str, user: str, rules: list[Any]) -> None:
        """Give a user exactly these rules in a namespace, instead of what it had."""
        prefix = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        self.post(f"{prefix}/roles", {"metadata": {"name": user}, "rules": rules})
        self.post(
            f"{prefix}/rolebindings",
            {"metadata": {"name": user}, "roleRef": role, "subjects": [subject]},
        )

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create something as admin."""
        return self.send("POST", path, body)

    def define(self, crd: Mapping[str, Any]) -> None:
        """Create a kind, unless it exists, and wait until it is served."""
        group = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        path = f"{group}/{crd['metadata']['name']}"
        with self.api("default") as api:
            if api._call(Request("GET", path)) is None:
                api._call(Request("POST", group, body=dict(crd)))
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                found = api._call(Request("GET", path)) or {}
                conditions = found.get("status", {}).get("conditions") or ()
                if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                    return
                time.sleep(0.1)
        raise AssertionError(f"{path} is not served: {conditions}")

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Any request as admin."""
        return dict(json.loads(self._sent(method, path, body)))

    def metrics(self) -> str:
        """What the server counts of itself."""
        return self._sent("GET", "/metrics", None).decode()

    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        request = Request(method, path, body=None if body is None else dict(body))
        response = transmit(self.api("default").connection, request, (10.0, 10.0))
        content = bytes(response.read())
        assert response.status < 300, content
        return content

    # --- parts ------------------------------------------------------------------------------

    @property
    def _certs(self) -> Path:
        return self.folder / "certs"

    def _write_files(self) -> None:
        key = self.folder / "sa.key"
        command = ["openssl", "genrsa", "-out", str(key), "2048"]
        subprocess.run(command, check=True, capture_output=True)
        lines = [f'{user},{user},{user},"{group}"' for user, group in GROUPS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _etcd_arguments(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{p}" for p in (self._etcd_port, self._peer_port))
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]

    def _server_arguments(self) -> list[str]:
        key = self.folder / "sa.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self._certs}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged",
            "--shutdown-delay-duration=0s",
        ]

    def _spawn(self, name: str, arguments: list[str]) -> "subprocess.Popen[bytes]":
        path = programs.path(name)
        # Cannot fail half way: the log is the only thing that a failed start leaves.
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": ""},
                start_new_session=True,
            )

    def _wait(self, answers: Any, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                answers()
            except Exception as error:
                for name, process in (("etcd", self._etcd), ("kube-apiserver", self._server)):
                    if process is not None and process.poll() is not None:
                        tail = (self.folder / f"{name}.log").read_text()[-2000:]
                        raise AssertionError(f"{name} ended: {tail}") from error
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def _ready(self) -> None:
        response = transmit(self.api("default").connection, Request("GET", "/readyz"), (2.0, 2.0))
        content = response.read()
        if response.status != 200:
            raise RuntimeError(content)

    def _etcd_call(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._etcd_port}/v3/{what}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return dict(json.loads(answer.read()))
