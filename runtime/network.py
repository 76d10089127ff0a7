"""The network interface over which ranks talk. gloo would take the one that the host's own name resolves to, which may
be the loopback (Debian's 127.0.1.1), or the address of a network that the machine has left."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address, netdevice(7)


def bind_gloo(host: str, port: int) -> None:
    """Let gloo use the interface that leads to `host`, unless the user's GLOO_SOCKET_IFNAME says which. Where the
    system does not tell, gloo chooses by itself."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(host, port)):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_towards(host: str, port: int) -> str:
    """The name of the interface whose IPv4 address this machine would send from; "" where the system does not tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # chooses the address; UDP sends nothing yet
            own = socket.inet_aton(probe.getsockname()[0])
            for _, name in socket.if_nameindex():
                if _address_of(probe, name) == own:
                    return name
        except (OSError, AttributeError):
            pass
    return ""


def _address_of(probe: socket.socket, name: str) -> bytes:
    try:
        return fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[20:24]
    except OSError:  # an interface without an IPv4 address
        return b""
