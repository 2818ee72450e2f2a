"""Kafka's own VerifiableConsumer as a group's member, in a process that can be killed."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from fleet.broker.embedded import shared_classes
from fleet.broker.jars import find_kafka

_MAIN = "org.apache.kafka.tools.VerifiableConsumer"
_ASSIGNORS = {
    "eager": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@dataclass
class JavaGroup:
    """Members of one group; kind is eager, cooperative or consumer (KIP-848)."""

    bootstrap: str
    group: str
    topic: str
    kind: str
    session_s: float
    folder: Path
    members: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """One more; it commits by itself every 0.5 s."""
        config = self.folder / f"{self.group}-{name}.properties"
        settings = ["auto.commit.interval.ms=500", "metadata.max.age.ms=5000", f"client.id={name}"]
        if self.kind != "consumer":  # there the group's own settings rule
            settings.append(f"heartbeat.interval.ms={int(self.session_s * 1000 / 3)}")
        config.write_text("\n".join(settings))
        session = ("--session-timeout", str(int(self.session_s * 1000)))
        own = (
            ("--group-protocol", "consumer")
            if self.kind == "consumer"
            else (*session, "--assignment-strategy", _ASSIGNORS[self.kind])
        )
        kafka = find_kafka()
        command = [
            str(kafka.java), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            *shared_classes(kafka),
            "-cp", kafka.classpath, _MAIN,
            "--bootstrap-server", self.bootstrap, "--topic", self.topic, "--group-id", self.group,
            "--enable-autocommit", "--reset-policy", "latest", *own,
            "--consumer.config", str(config),
        ]  # fmt: skip
        with (self.folder / f"{self.group}-{name}.log").open("wb") as log:
            self.members[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        """As a machine dies."""
        self.members[name].kill()
        self.members.pop(name).wait()

    def leave(self, name: str) -> None:
        """As a client ends."""
        self.members[name].terminate()
        self.members.pop(name).wait(timeout=60)

    def end(self) -> None:
        """All that are left."""
        for name in list(self.members):
            self.kill(name)
