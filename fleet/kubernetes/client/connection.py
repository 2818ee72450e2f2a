"""Where an API server is, what proves who asks, and the connections that are kept to it.

Problem: the package `kubernetes` costs a process 50 MB and half a second, for types of which Fleet
uses none: a third of a worker's pod. Choice: a pod's own service account is three files and two
variables, which are read here as that package reads them (the token anew every minute, since the
kubelet replaces it). A kubeconfig or a proxy is read by the package, which knows all of their
forms. Requests are urllib3's either way. Cost: this one way in is written here a second time.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import urllib3
from urllib3.connection import HTTPConnection

from fleet.clock import Clock
from fleet.errors import ConfigError

CONNECTIONS: Final = 16
"""Kept open at most."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST: Final = "KUBERNETES_SERVICE_HOST"
_PORT: Final = "KUBERNETES_SERVICE_PORT"
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
_TOKEN_SECONDS: Final = 60.0
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 9}
"""Seconds, seconds, times; as Kubernetes' own clients have them."""
_REMEDY: Final = "set KUBECONFIG, correct runtime.context, or run inside the cluster"


@dataclass(slots=True, kw_only=True)
class Connection:
    """Connects to one server as one user. Thread-safe."""

    host: str
    pool: urllib3.PoolManager
    authorization: Callable[[], str | None]
    """Returns the header of the next request; None if there is none to send."""

    def close(self) -> None:
        """Closes open connections that are not in use."""
        self.pool.clear()


def connection_of(*, context: str | None, environ: Mapping[str, str], clock: Clock) -> Connection:
    """Connects to the server of a kubeconfig's context, else of this pod.

    Raises ConfigError if neither exists.
    """
    inside = (
        (SERVICE_ACCOUNT / "token").exists()
        and _HOST in environ
        and context is None
        and "KUBECONFIG" not in environ
    )
    if inside and not any(environ.get(name) for name in _PROXIES):
        return _of_pod(SERVICE_ACCOUNT, environ, clock)
    return _of_package(environ.get("KUBECONFIG"), context, inside=inside)


def _of_pod(folder: Path, environ: Mapping[str, str], clock: Clock) -> Connection:
    """By the service account that the kubelet mounts there."""
    host, port = environ.get(_HOST), environ.get(_PORT)
    authority = folder / "ca.crt"
    token = _Token(folder / "token", clock)
    try:
        token()
        if not (host and port and authority.read_text(encoding="utf-8")):
            raise OSError(f"{_HOST}, {_PORT} or {authority} is empty")
    except OSError as error:
        raise ConfigError(f"cannot reach the Kubernetes API server: {error}; {_REMEDY}") from error

    pool = urllib3.PoolManager(
        num_pools=4,
        maxsize=CONNECTIONS,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(authority),
        retries=False,
        socket_options=_probing(),
    )
    shown = f"[{host}]" if host and ":" in host else host
    return Connection(host=f"https://{shown}:{port}", pool=pool, authorization=token)


class _Token:
    """A mounted token, read again when it is a minute old."""

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._value = ""

    def __call__(self) -> str:
        """The header. Raises OSError where the file cannot be read or is empty, and none is known.

        One that cannot be read later is told by the server, which refuses the old one.
        """
        with self._lock:
            now = self._clock.monotonic()
            if not self._value or now - self._read_at >= _TOKEN_SECONDS:
                self._read_at = now
                try:
                    found = self._file.read_text(encoding="utf-8")
                    if not found:
                        raise OSError(f"{self._file} is empty")
                    self._value = f"bearer {found}"
                except OSError:
                    if not self._value:
                        raise
            return self._value


def _of_package(file: str | None, context: str | None, *, inside: bool) -> Connection:
    from kubernetes.client import ApiClient, Configuration  # noqa: PLC0415 - 50 MB and 0.5 s
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config  # noqa: PLC0415

    settings = Configuration()
    settings.retries = False
    settings.socket_options = _probing()
    try:
        if inside:
            load_incluster_config(client_configuration=settings)
        else:
            load_kube_config(
                config_file=file,
                context=context,
                client_configuration=settings,
                persist_config=False,
            )
    except ConfigException as error:
        raise ConfigError(f"cannot reach the Kubernetes API server: {error}; {_REMEDY}") from error

    settings.connection_pool_maxsize = CONNECTIONS
    pool = ApiClient(configuration=settings).rest_client.pool_manager

    def authorization() -> str | None:
        value = settings.auth_settings().get("BearerToken", {}).get("value")
        return None if value is None else str(value)

    return Connection(host=str(settings.host), pool=pool, authorization=authorization)


def _probing() -> list[tuple[int, int, int]]:
    """Socket options: a watch on a connection that is half gone would wait for ever."""
    options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
