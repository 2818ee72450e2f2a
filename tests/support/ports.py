"""A port that nobody uses now."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Ask the kernel for one."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
