"""A port that nobody uses now."""

import socket


def free_port() -> int:
    """Ask the kernel for one on the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
