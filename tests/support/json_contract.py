"""What docs/reference/json.md promises of the JSON answers, for the tests that hold them to it."""

import json
import re
from typing import Any

from tests.support.needs import repository

DOCUMENT = repository() / "docs" / "reference" / "json.md"


def documented(heading: str) -> Any:
    """The example under a heading of docs/reference/json.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    match = re.search(
        rf"^## `{re.escape(heading)}`.*?```json\n(.*?)```", text, re.DOTALL | re.MULTILINE
    )
    assert match, f"{DOCUMENT} has no example of {heading}"
    return json.loads(match[1])


def shape(value: Any) -> Any:
    """Keys and kinds, without values: null goes with everything."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"
