"""A port that nobody uses now, for what cannot be told to take one by itself."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Ask the kernel for one; somebody else may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
