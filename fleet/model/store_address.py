"""Addresses of object stores hold no login: they stand in files, messages, JSON and Delta logs.

pyarrow takes `s3://KEY:SECRET@bucket`; the environment is where a secret belongs.
"""

import re
from typing import Final

_BUCKETS: Final = frozenset({"s3", "s3a", "s3n", "gs", "gcs"})
"""Schemes whose first part is a bucket's name alone; abfss:// has container@account there."""
_SECRET: Final = re.compile(r"[?&](client_secret|secret_key|sig)=", re.IGNORECASE)


def without_login(address: str) -> str:
    """The same. ValueError, which does not repeat it, where it holds a key or a password."""
    scheme, mark, rest = address.partition("://")
    name = rest.partition("/")[0]
    marks = "@:" if scheme in _BUCKETS else ""
    held = ":" in name.rpartition("@")[0] or any(each in name for each in marks)
    if mark and (held or _SECRET.search(rest)):
        raise ValueError(
            f"holds a login, and a secret is never written in an address: write {scheme}:// and "
            "the place alone, and give the login in the store's usual environment "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://)"
        )
    return address
