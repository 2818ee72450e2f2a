"""Values that people write in fleet.yaml and that pydantic has no type for: durations, patterns."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

SPARK = r"^(shared|sc://.+|local\[(\d+|\*)\])$"
"""Where Spark is: the shared server, a Connect server, one JVM per worker."""
ANY_CHARACTER = re.DOTALL
"""How patterns of group ids are read: Kafka allows line breaks in an id, and `.*` is every id."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: Any) -> Any:
    """`200ms`, `10s`, `5m`, `1h`, `2d` or a number of seconds → seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", value)
        if match is None:
            raise ValueError("is no duration: write a number and ms, s, m, h or d, such as 30s")
        # 9 * 0.001 is 0.009000000000000001: a figure that nobody wrote, in messages and hashes.
        return round(float(match[1]) * _UNITS[match[2] or "s"], 6)
    if isinstance(value, bool):
        raise ValueError("is no duration: write a number and ms, s, m, h or d, such as 30s")  # noqa: TRY004
    return value


def regular_expression(value: Any) -> Any:
    """A pattern that Python's `re` reads."""
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
    return value


def without_token(value: str) -> str:
    """An address of Spark that holds no secret: it stands in files, settings and logs."""
    if re.search(r";\s*token=", value, re.IGNORECASE):
        raise ValueError(
            "holds a token, and a secret is never written in the file: leave `token=` out, set "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN where it runs (in pods: runtime.env_from), and write "
            "use_ssl=true, or use_ssl=false to send it in the clear"
        )
    return value


def folder_of_tables(value: str) -> str:
    """A folder or an address that everybody who reads the file finds, in pods too."""
    if "\0" in value:
        raise ValueError("has a NUL character, which no path holds: write it without")
    if value.removeprefix("file://").startswith("~"):
        raise ValueError(
            "begins with ~, which is another home for each who reads the file: write "
            "the whole path, such as /srv/history, or an address such as s3://bucket/history"
        )
    return value


Duration = Annotated[float, BeforeValidator(seconds)]
Pattern = Annotated[str, BeforeValidator(regular_expression)]
SparkPlace = Annotated[str, Field(pattern=SPARK), AfterValidator(without_token)]
