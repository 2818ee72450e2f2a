"""The cluster's keys: one CA, two serving certificates, one client, a token for each user.

By openssl, which every Debian with certificates has: no library of ours makes certificates. CA,
tokens and the key of service accounts stay as long as the cluster's data; the serving
certificates are made at each start, since the addresses in them may have changed.
"""

import base64
import contextlib
import secrets
import subprocess
from pathlib import Path
from typing import Final

import yaml

from fleet.errors import FleetError
from fleet.system.home import write_whole
from k8s.cluster import programs
from k8s.cluster.cluster_layout import API_SERVICE, DOMAIN, INSIDE, NODE, Layout

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
