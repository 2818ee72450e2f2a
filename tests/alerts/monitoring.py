"""A real Prometheus and a real Alertmanager with short intervals, and a webhook that they call."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from fleet.system.ports import on_free_ports
from tests.support.needs import ALERTMANAGER, program, repository
from tests.support.waiting import until


@dataclass
class Webhook:
    """Collects notifications as Alertmanager posts them."""

    notifications: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def alerts(self, name: str, status: str) -> list[dict[str, Any]]:
        """Alerts of that name that were told in that status."""
        return [
            alert
            for notification in list(self.notifications)
            for alert in notification["alerts"]
            if alert["labels"]["alertname"] == name and alert["status"] == status
        ]

    @property
    def firing(self) -> list[dict[str, Any]]:
        """Notifications that tell something new."""
        return [each for each in list(self.notifications) if each["status"] == "firing"]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """Listens on a free port."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.notifications.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Monitoring:
    """What runs."""

    prometheus: str
    hook: Webhook
    folder: Path

    def query(self, expr: str) -> list[dict[str, Any]]:
        """An instant query; fails where Prometheus refuses the expression."""
        answer = get(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def fleet(self, *arguments: str) -> Any:
        """What a command of this fleet.yaml answers in JSON."""
        done = subprocess.run(
            fleet(*arguments, folder=self.folder),
            env={**os.environ, **environment(self.folder)},
            check=True, timeout=300, capture_output=True,
        )  # fmt: skip
        return json.loads(done.stdout)


def environment(folder: Path) -> dict[str, str]:
    """Where commands find this checkout and their state."""
    return {"PYTHONPATH": str(repository()), "FLEET_HOME": str(folder / "home")}


def get(url: str) -> Any:
    """JSON of a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@contextlib.contextmanager
def process(arguments: list[str], log: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block."""
    with log.open("wb") as out:
        running = subprocess.Popen(
            arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            cwd=log.parent, env={**os.environ, **environ},
        )  # fmt: skip
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(timeout=10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(timeout=10)


def fleet(*arguments: str, folder: Path) -> list[str]:
    """Command line of the `fleet` command of this checkout."""
    return [sys.executable, "-m", "fleet", "--config", str(folder / "fleet.yaml"), *arguments]


@contextlib.contextmanager
def monitoring(folder: Path, spec: dict[str, Any], *, groups: str) -> Iterator[Monitoring]:
    """Exporter, Prometheus and Alertmanager for a fleet.yaml, all configured by `fleet render`.

    `groups` is the pattern of those that are exported.
    """

    def serve(*ports: int) -> AbstractContextManager[Monitoring]:
        return _monitoring(folder, spec, groups, ports)

    with on_free_ports("Prometheus and its sides", serve, count=3) as running:
        yield running


@contextlib.contextmanager
def _monitoring(
    folder: Path, spec: dict[str, Any], groups: str, ports: Sequence[int]
) -> Iterator[Monitoring]:
    port, prom, alert = ports
    exported = {"interval": "1s", "listen": f"127.0.0.1:{port}", "groups": {"allow": [groups]}}
    spec = {**spec, "exporter": exported}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(spec))
    here = environment(folder)
    with contextlib.ExitStack() as stack:
        hook = stack.enter_context(webhook())
        for arguments in (
            ("render", "alert-rules", "--output-file", "rules.yml"),
            (
                "render",
                "alertmanager",
                "--page",
                hook.url,
                "--ticket",
                hook.url,
                "--output-file",
                "am.yml",
            ),
        ):
            subprocess.run(
                fleet(*arguments, folder=folder),
                cwd=folder, env={**os.environ, **here}, check=True, timeout=300,
            )  # fmt: skip
        (folder / "prometheus.yml").write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": ["rules.yml"],
                    "scrape_configs": [
                        {
                            "job_name": "fleet",
                            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                        }
                    ],
                    "alerting": {
                        "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alert}"]}]}]
                    },
                }
            )
        )
        programs = [program(*ALERTMANAGER), program("prometheus")]
        assert all(programs)
        alertmanager = stack.enter_context(
            process(
                [
                    str(programs[0]), "--config.file=am.yml", "--storage.path=am",
                    f"--web.listen-address=127.0.0.1:{alert}", "--cluster.listen-address=",
                ],
                folder / "alertmanager.log",
            )
        )  # fmt: skip
        prometheus = stack.enter_context(
            process(
                [
                    str(programs[1]), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                    f"--web.listen-address=127.0.0.1:{prom}", "--rules.alert.resend-delay=1s",
                ],
                folder / "prometheus.log",
            )
        )  # fmt: skip
        exporter = stack.enter_context(
            process(fleet("exporter", folder=folder), folder / "exporter.log", **here)
        )
        running = Monitoring(f"http://127.0.0.1:{prom}", hook, folder)

        def seen() -> bool:
            for name, each in (
                ("alertmanager", alertmanager), ("prometheus", prometheus), ("exporter", exporter),
            ):  # fmt: skip
                assert each.poll() is None, (folder / f"{name}.log").read_text()
            with contextlib.suppress(OSError, http.client.HTTPException, KeyError):
                return bool(running.query('fleet_snapshot_age_seconds{cluster="main"}'))
            return False

        until(seen, "the first scrape of the exporter")
        yield running
