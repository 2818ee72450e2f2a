"""Names for systems that allow fewer characters than Kafka does.

Problem: group ids hold any character; Dagster's keys allow letters, digits, `.`, `_` and `-`,
Kubernetes names lower-case letters, digits and dashes, and `orders.v1`, `orders-v1`, `orders_v1`
must not become one. Choice: a readable part and a hash of the raw ids wherever the raw id may not
stand itself; it travels as metadata.
"""

import hashlib
import re

READABLE = 40
"""Most characters of the readable part; with the hash 49, which leaves a suffix its room."""


def _hash(cluster: str, group: str) -> str:
    return hashlib.sha256(f"{cluster}\0{group}".encode()).hexdigest()[:8]


def slug(cluster: str, group: str) -> str:
    """A name of [A-Za-z0-9_] for a group of a cluster, at most 49 characters, never shared."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", f"{cluster}_{group}").strip("_")
    return f"{readable[:READABLE]}_{_hash(cluster, group)}"


def plain_name(raw: str) -> str:
    """The id itself where letters, digits, `.`, `_` and `-` are enough.

    Any other id: a readable part and a hash. An id that ends like such a hash gets one too, so
    that no two ids share a name. At most 100 characters.
    """
    plain = re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", raw) and "..." not in raw
    if plain and not re.search(r"(^|_)[0-9a-f]{8}$", raw):
        return raw
    readable = re.sub(r"[^A-Za-z0-9]+", "_", raw).strip("_")
    return f"{readable[:READABLE]}_{_hash('', raw)}".lstrip("_")


def k8s_slug(cluster: str, group: str) -> str:
    """The same for Kubernetes: lower-case letters, digits and dashes, at most 49 of 63.

    It starts with a letter, which Services want.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", f"{cluster}-{group}".lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"fleet-{readable}"
    return f"{readable[:READABLE].rstrip('-')}-{_hash(cluster, group)}"
