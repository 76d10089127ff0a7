"""gloo gets the interface that leads to the first rank."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from pibroch.runtime.network import bind_gloo, interface_towards

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")


@linux
def test_the_loopback_leads_to_this_machine() -> None:
    assert interface_towards("127.0.0.1", 80) == "lo"
    assert interface_towards("127.9.9.9", 80) in ("lo", "")  # an address that no interface has as its own


@linux
def test_an_own_address_is_on_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("no route leaves this machine")
        own = probe.getsockname()[0]
    name = interface_towards(own, 9)
    assert name == interface_towards("192.0.2.1", 9)
    assert name in {found for _, found in socket.if_nameindex()} - {"lo"}


def test_a_host_that_does_not_exist_is_left_to_gloo() -> None:
    assert interface_towards("no.such.host.invalid", 1) == ""


@linux
def test_the_users_choice_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    bind_gloo("127.0.0.1", 1)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "mine"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    bind_gloo("127.0.0.1", 1)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
