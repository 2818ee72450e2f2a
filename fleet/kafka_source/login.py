"""How a Spark task logs in: references travel, values are read where the task runs [11].

Problem: an executor needs credentials, and whatever is an option of a DataFrame stands in plans,
logs and the UI. Choice: each client option is sent as where to find it (an environment variable,
a file, or a plain value for what is no secret) and resolved in the task. Cost: variables and
files have to exist on every machine of a Spark cluster under the same names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.config.spec import ClusterSpec

References = Mapping[str, Mapping[str, str]]
"""librdkafka option → {"env" | "file" | "value": …}."""


def references(cluster: ClusterSpec, bootstrap: str) -> dict[str, dict[str, str]]:
    """Where a task finds what it needs to reach the cluster; holds no secret."""
    security = cluster.security
    found: dict[str, dict[str, str]] = {
        "bootstrap.servers": {"value": bootstrap},
        "security.protocol": {"value": security.protocol},
    }
    if security.sasl is not None:
        sasl = security.sasl.model_dump(exclude_none=True)
        found["sasl.mechanism"] = {"value": sasl["mechanism"]}
        found["sasl.username"] = _where(sasl, "username")
        found["sasl.password"] = _where(sasl, "password")
    for option, file in (
        ("ssl.ca.location", security.tls.ca_file),
        ("ssl.certificate.location", security.tls.cert_file),
        ("ssl.key.location", security.tls.key_file),
    ):
        if file is not None:
            found[option] = {"value": str(Path(file).expanduser())}
    return found


def _where(sasl: Mapping[str, Any], part: str) -> dict[str, str]:
    for kind in ("env", "file"):
        if f"{part}_{kind}" in sasl:
            return {kind: str(sasl[f"{part}_{kind}"])}
    return {"value": str(sasl[part])}  # a user's name may stand in the file, a password may not


def resolved(references: References, environ: Mapping[str, str]) -> dict[str, str]:
    """The options themselves, read on this machine; ValueError names what is missing."""
    options = {}
    for option, where in references.items():
        if "value" in where:
            options[option] = where["value"]
        elif "env" in where:
            if not environ.get(where["env"]):
                raise ValueError(
                    f"{option}: the environment variable {where['env']} is not set for this Spark "
                    "task: set it for the Spark server and for every executor"
                )
            options[option] = environ[where["env"]]
        else:
            try:
                text = Path(where["file"]).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(
                    f"{option}: the file {where['file']} cannot be read by this Spark task: "
                    "mount it on every machine of the Spark cluster"
                ) from error
            options[option] = text.rstrip("\r\n")
    return options
