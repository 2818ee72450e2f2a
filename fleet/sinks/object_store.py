"""How delta-rs reaches an object store: options by the names of environment variables.

A job's code and its revision hold no credentials: the worker resolves the names at each write.
"""

import os
from collections.abc import Mapping
from typing import Final

_VARIABLES: Final = {
    # Ours → delta-rs', which is also the variable that is read if none is named.
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def delta_options(store: Mapping[str, str]) -> dict[str, str]:
    """Returns delta-rs' storage options.

    Raises ValueError for an unknown option, and where a variable that is named is not set here.
    """
    if unknown := set(store) - set(_VARIABLES):
        raise ValueError(
            f"store: unknown option {', '.join(sorted(unknown))}; known: {', '.join(_VARIABLES)}"
        )
    found = {}
    for option, name in _VARIABLES.items():
        variable = store.get(option, name)
        value = os.environ.get(variable)
        if value is None and option in store:
            raise ValueError(f"store: {option} is to be in {variable}, which is not set here")
        if value:
            found[name] = value
    if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found
