"""The few questions that a start asks of its API server.

By urllib and not by the client library: these are asked while nothing is sure to answer, and
every failure means "not yet".
"""

import json
import ssl
import urllib.error
import urllib.request
from typing import Any, Final

import yaml

from k8s.cluster.cluster_layout import NODE, Layout

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
