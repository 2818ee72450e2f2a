"""Makes names for systems that allow fewer characters than Kafka.

Problem: group ids hold any character. Dagster's keys allow letters, digits, `.`, `_` and `-`;
Kubernetes names allow lower-case letters, digits and dashes. `orders.v1`, `orders-v1` and
`orders_v1` must stay distinct. Choice: a readable part and a hash of the raw ids, unless the raw id
is allowed itself. Cost: the raw id must travel as metadata.
"""

import hashlib
import re

READABLE = 40
"""Most characters of the readable part; with the hash 49, so that a suffix fits."""


def _hash(cluster: str, group: str) -> str:
    return hashlib.sha256(f"{cluster}\0{group}".encode()).hexdigest()[:8]


def slug(cluster: str, group: str) -> str:
    """Returns a unique name of [A-Za-z0-9_] for a group, at most 49 characters."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", f"{cluster}_{group}").strip("_")
    return f"{readable[:READABLE]}_{_hash(cluster, group)}"


def plain_name(raw: str) -> str:
    """Returns the id itself if it has only letters, digits, `.`, `_` and `-`.

    Any other id gives a readable part and a hash. An id that ends like such a hash gets one too, so
    that no two ids share a name. At most 100 characters.
    """
    plain = re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", raw) and "..." not in raw
    if plain and not re.search(r"(^|_)[0-9a-f]{8}$", raw):
        return raw
    readable = re.sub(r"[^A-Za-z0-9]+", "_", raw).strip("_")
    return f"{readable[:READABLE]}_{_hash('', raw)}".lstrip("_")


def k8s_slug(cluster: str, group: str) -> str:
    """Returns a name for Kubernetes: lower-case letters, digits and dashes, at most 49 of 63.

    It starts with a letter, as Services require.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", f"{cluster}-{group}".lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"fleet-{readable}"
    return f"{readable[:READABLE].rstrip('-')}-{_hash(cluster, group)}"
