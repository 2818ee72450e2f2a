"""What each component is started with. Pure: a layout in, files and arguments out.

Sized for a node that many short tests share: no leader election, no image is ever collected (none
could be pulled again), nothing is evicted for want of disk, etcd does not wait for the disk (kill
-9 loses nothing, a power cut may). Nothing pulls: images come by `load` (images.py).
"""

import base64
import contextlib
import json
import secrets
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from fleet.errors import FleetError
from fleet.system.home import write_whole
from k8s.cluster import programs
from k8s.cluster.cluster_layout import (
    API_PORT,
    API_SERVICE,
    CONTAINERD,
    DOMAIN,
    INSIDE,
    NODE,
    PAUSE,
    SERVICES,
    Layout,
)

# The cluster's keys: one CA, two serving certificates, one client, a token for each user.
#
# By openssl, which every Debian with certificates has: no library of ours makes certificates. CA,
# tokens and the key of service accounts stay as long as the cluster's data; the serving
# certificates are made at each start, since the addresses in them may have changed.


_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS: Final = "3650"
USERS: Final = {
    "admin": ("fleet-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", ""),
    "dns": ("fleet-dns", "system:masters"),
}
"""Whose token → user and group."""


def ensure(layout: Layout) -> None:
    """Make what is missing, and the serving certificates anew."""
    layout.pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    _authority(layout.pki)
    if not (layout.pki / "accounts.key").exists():
        _keys(layout.pki)
    tokens = _tokens(layout.pki / "tokens.csv")
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    names += [f"kubernetes.default.svc.{DOMAIN}", "localhost"]
    addresses = ["127.0.0.1", API_SERVICE, layout.node_address]
    alternatives = [*(f"DNS:{name}" for name in names), *(f"IP:{each}" for each in addresses)]
    _sign(layout.pki, "apiserver", "/CN=kube-apiserver", alternatives)
    _sign(layout.pki, "kubelet", f"/CN=system:node:{NODE}", [f"IP:{layout.node_address}"])
    _sign(layout.pki, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", [])
    for user, token in tokens.items():
        if user != "admin":
            write_whole(layout.configs / f"{user}.kubeconfig", _kubeconfig(layout, token))
    write_whole(layout.kubeconfig, _kubeconfig(layout, tokens["admin"], whole=True))


def _kubeconfig(layout: Layout, token: str, *, whole: bool = False) -> str:
    """A kubeconfig; `whole`: with the CA in it, so that it can be copied away."""
    cluster: dict[str, str] = {"server": layout.server}
    if whole:
        ca = (layout.pki / "ca.crt").read_bytes()
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    else:
        cluster["certificate-authority"] = str(INSIDE / "pki" / "ca.crt")
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fleet-test", "cluster": cluster}],
            "users": [{"name": "fleet-test", "user": {"token": token}}],
            "contexts": [
                {"name": "fleet-test", "context": {"cluster": "fleet-test", "user": "fleet-test"}}
            ],
            "current-context": "fleet-test",
        }
    )


def _tokens(file: Path) -> dict[str, str]:
    """Token of each user; the file is what the API server reads."""
    if not file.exists():
        lines = []
        for key, (user, group) in USERS.items():
            lines.append(f'{secrets.token_hex(24)},{user},{key},"{group}"\n')
        write_whole(file, "".join(lines))
    kept = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()]
    return {key: token for token, _, key, _ in kept}


def _authority(folder: Path) -> None:
    if (folder / "ca.crt").exists():
        return
    _openssl(
        "req", "-x509", *_CURVE, "-days", _DAYS, "-subj", "/CN=fleet-test-ca",
        "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
        "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt.new"),
    )  # fmt: skip
    (folder / "ca.crt.new").replace(folder / "ca.crt")


def _keys(folder: Path) -> None:
    """What service account tokens are signed and checked with."""
    made = folder / "accounts.key.new"
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(made))
    _openssl("ec", "-in", str(made), "-pubout", "-out", str(folder / "accounts.pub"))
    made.replace(folder / "accounts.key")


def _sign(folder: Path, name: str, subject: str, alternatives: list[str]) -> None:
    usage = "clientAuth" if not alternatives else "serverAuth"
    extensions = folder / f"{name}.ext"
    lines = [f"extendedKeyUsage={usage}", "keyUsage=critical,digitalSignature"]
    if alternatives:
        lines.append(f"subjectAltName={','.join(alternatives)}")
    write_whole(extensions, "\n".join(lines) + "\n")
    request = folder / f"{name}.csr"
    _openssl(
        "req", "-new", *_CURVE, "-subj", subject,
        "-keyout", str(folder / f"{name}.key"), "-out", str(request),
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-in", str(request), "-days", _DAYS, "-extfile", str(extensions),
        "-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"),
        "-set_serial", f"0x{secrets.token_hex(8)}", "-out", str(folder / f"{name}.crt"),
    )  # fmt: skip
    for each in (request, extensions):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()


def _openssl(*words: str) -> None:
    done = subprocess.run(
        [programs.path("openssl"), *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FleetError(f"openssl {words[0]} failed: {done.stderr.strip()[-400:]}")


_PKI: Final = f"{INSIDE}/pki"
_CONFIG: Final = f"{INSIDE}/config"
FIRST: Final = ("etcd", "containerd", "kube-apiserver")
"""What the others need to be there."""


def files(layout: Layout) -> dict[str, str]:
    """Name below the folder `config` → text."""
    return {
        "containerd.toml": _containerd(),
        "cni/10-pods.conflist": _dump(_network(layout)),
        "kubelet.yaml": yaml.safe_dump(_kubelet(layout)),
        "resolv.conf": "# nothing is resolved beyond the cluster\n",
        "Corefile": _corefile(layout),
    }


def arguments(layout: Layout, program: Callable[[str], str]) -> Mapping[str, list[str]]:
    """Component → arguments, in the order of their start. `program` knows where programs are."""
    kubeconfig = {
        name: f"--kubeconfig={_CONFIG}/{name}.kubeconfig"
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
    }
    return {
        "etcd": [
            program("etcd"),
            f"--data-dir={INSIDE}/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--logger=zap",
        ],
        "containerd": [program("containerd"), f"--config={_CONFIG}/containerd.toml"],
        "kube-apiserver": [
            program("kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={API_PORT}",
            f"--advertise-address={layout.node_address}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--tls-cert-file={_PKI}/apiserver.crt",
            f"--tls-private-key-file={_PKI}/apiserver.key",
            f"--client-ca-file={_PKI}/ca.crt",
            f"--token-auth-file={_PKI}/tokens.csv",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-key-file={_PKI}/accounts.pub",
            f"--service-account-signing-key-file={_PKI}/accounts.key",
            f"--kubelet-client-certificate={_PKI}/kubelet-client.crt",
            f"--kubelet-client-key={_PKI}/kubelet-client.key",
            f"--kubelet-certificate-authority={_PKI}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
        ],
        "kube-controller-manager": [
            program("kube-controller-manager"),
            kubeconfig["kube-controller-manager"],
            "--use-service-account-credentials",
            f"--service-account-private-key-file={_PKI}/accounts.key",
            f"--root-ca-file={_PKI}/ca.crt",  # else the ca.crt in every pod is empty
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ],
        "kube-scheduler": [
            program("kube-scheduler"),
            kubeconfig["kube-scheduler"],
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ],
        "kubelet": [
            program("kubelet"),
            kubeconfig["kubelet"],
            f"--config={_CONFIG}/kubelet.yaml",
            f"--root-dir={INSIDE}/kubelet",
            f"--hostname-override={NODE}",
            f"--node-ip={layout.node_address}",
        ],
        "kube-proxy": [
            program("kube-proxy"),
            kubeconfig["kube-proxy"],
            f"--hostname-override={NODE}",
            f"--cluster-cidr={layout.pods}",
            "--proxy-mode=iptables",
            "--metrics-bind-address=127.0.0.1:10249",
            # These are settings of the whole machine.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
        "dns": [program("dns"), f"-conf={_CONFIG}/Corefile"],
    }


def _kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{_PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{_PKI}/kubelet.crt",
        "tlsPrivateKeyFile": f"{_PKI}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "cgroupsPerQOS": True,  # else containers are put outside of that root
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "oomScoreAdj": 0,
        "clusterDNS": [layout.node_address],
        "clusterDomain": DOMAIN,
        "resolvConf": f"{_CONFIG}/resolv.conf",
        "volumePluginDir": f"{INSIDE}/kubelet-plugins",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
            "imagefs.inodesFree": "1%",
        },
        "serializeImagePulls": False,
        "maxPods": 200,
    }


def _containerd() -> str:
    return f"""version = 2
root = "{INSIDE}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{CONTAINERD}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{_CONFIG}/cni"
"""


def _network(layout: Layout) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isDefaultGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": layout.pods}]],
                    "dataDir": "/run/ipam",
                },
            }
        ],
    }


def _corefile(layout: Layout) -> str:
    return f"""{DOMAIN}:53 {{
    bind {layout.node_address}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig {_CONFIG}/dns.kubeconfig
    }}
}}
"""


def _dump(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
