"""Loaded by every Python of an environment: what macOS lacks is gone.

No stand-in for macOS, but what a program needs of Linux alone fails here as it would fail there.
"""

import builtins
import fcntl
import io
import os
import signal
import socket
import sys
import sysconfig
import urllib.request  # noqa: F401 - it asks macOS itself for proxies there

_ONLY_THERE = {
    os: (
        "pidfd_open", "sched_getaffinity", "memfd_create", "eventfd", "getrandom", "splice",
        "posix_fadvise", "copy_file_range",
    ),
    fcntl: tuple(name for name in vars(fcntl) if name.startswith("F_OFD")),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGPWR", "SIGSTKFLT"),
    socket: ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "SO_BINDTODEVICE"),
}  # fmt: skip


def _unknown(call):
    def checked(path, *args, **kwargs):
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *args, **kwargs)

    return checked


for _module, _names in _ONLY_THERE.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
for _place, _call in (
    (builtins, "open"), (io, "open"), (os, "open"), (os, "listdir"), (os, "scandir"),
    (os, "readlink"), (os, "stat"),
):  # fmt: skip
    setattr(_place, _call, _unknown(getattr(_place, _call)))
sysconfig.get_config_vars()  # of the file that is there, before the name is another
sys.platform = "darwin"
