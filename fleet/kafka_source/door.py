"""What listens at an address where no broker lets us in, in words that say what to correct.

Problem: a wrong name, a wrong port and TLS spoken to a listener without it all end in silence or a
closed connection, and the client library tries again for as long as it may. Choice: one look with
plain sockets, when the first connection has failed for seconds: a TLS handshake and an ApiVersions
request (KIP-35) tell what is there. All addresses are looked at side by side: one good one is
enough, and then it is not this. Cost: up to 4 s more, once, where nothing works anyway.
"""

import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

_CONNECTING: Final = 0.7
_ANSWERING: Final = 1.5
_MOST: Final = 16
"""Addresses that are looked at at once; more than these are looked at in turn."""
_HELLO: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions, version 0, correlation 1, no client id; with its length before it."""
_CHECK: Final = "check cluster.bootstrap_servers"


def at_the_door(servers: list[str], *, tls: bool) -> str | None:
    """Why nobody gets in there; None where brokers answer as they should, so that it is not this.

    `tls`: whether the login says that they speak it.
    """
    with ThreadPoolExecutor(max_workers=_MOST) as looking:
        told = list(looking.map(partial(_look, tls=tls), servers))
    return None if None in told else told[0]


def _look(address: str, *, tls: bool) -> str | None:
    host, _, port = address.rpartition(":")
    where = (host.strip("[]"), int(port))
    try:
        socket.create_connection(where, timeout=_CONNECTING).close()
    except socket.gaierror:
        return f"the name {where[0]} is not known; {_CHECK}"
    except ConnectionRefusedError:
        return f"nobody listens at {address}; {_CHECK}, and whether the broker runs"
    except OSError as error:
        why = "no connection is taken" if isinstance(error, TimeoutError) else error.strerror
        return f"{address} cannot be reached ({why}); {_CHECK}, networks and firewalls between"
    if tls:
        if _speaks_tls(where):
            return None
        said = _said(where)
        if _is_kafka(said):
            return f"{address} speaks no TLS: cluster.security.protocol is {_OTHER[False]} there"
        return _foreign(address, said)
    said = _said(where)
    if _is_kafka(said):
        return None
    if said is not None and not said.startswith(b"HTTP/") and _speaks_tls(where):
        return f"{address} speaks TLS: cluster.security.protocol is {_OTHER[True]} there"
    return _foreign(address, said)


_OTHER: Final = {True: "SSL or SASL_SSL", False: "PLAINTEXT or SASL_PLAINTEXT"}


def _said(where: tuple[str, int]) -> bytes | None:
    """The answer to ApiVersions: b"" where the connection is closed, None for silence."""
    try:
        with socket.create_connection(where, timeout=_CONNECTING) as sock:
            sock.settimeout(_ANSWERING)
            sock.sendall(_HELLO)
            return sock.recv(64)
    except TimeoutError:
        return None
    except OSError:
        return b""


def _is_kafka(said: bytes | None) -> bool:
    return said is not None and len(said) >= len(_HELLO) and said[4:8] == _HELLO[8:12]


def _speaks_tls(where: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with suppress(OSError), socket.create_connection(where, timeout=_CONNECTING) as sock:
        sock.settimeout(_ANSWERING)
        with context.wrap_socket(sock, server_hostname=where[0]):
            return True
    return False


def _foreign(address: str, said: bytes | None) -> str:
    if said is None:
        does = "takes connections and says nothing"
    elif said.startswith(b"HTTP/"):
        does = "answers as a web server"
    else:
        does = "answers with something else" if said else "closes every connection"
    return f"{address} is no listener of Kafka, it {does}; {_CHECK}: the port may be another's"
