"""Hosts with an address each, on a network of their own: namespaces, joined by a bridge.

Nothing of it reaches the network of the machine. Links can be cut, lose packets and delay them;
names are found in an ``/etc/hosts`` that is mounted for these hosts alone and may be filled late.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

_CLONE_NEWNET = 0x40000000
_PIECE_BYTES = 64 * 1024
_CONNECT_S = 5.0
_OWN = "10.77.0.254/24"  # of the test itself
_BEGIN = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


class Network:
    """Hosts on one network; the test needs ``a bridged network``.

    Args:
        names: By host the name by which others find it; each host also has its own as host name.
        folder: For the file of names.
    """

    def __init__(self, names: Mapping[str, str], folder: Path) -> None:
        mark = f"test-{os.getpid()}-{uuid4().hex[:6]}"
        self._names = dict(names)
        self._bridge = f"{mark}-bridge"
        self._spaces = {host: f"{mark}-{host}" for host in names}
        self._ports = {host: f"port{n}" for n, host in enumerate(names)}
        self.addresses = {host: f"10.77.0.{n}" for n, host in enumerate(names, 1)}
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.close()
            raise RuntimeError(f"{error}: {error.stderr.strip()[:200]}") from None

    def _make(self) -> None:
        _do("ip", "netns", "add", self._bridge)
        _do("ip", "-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", self._bridge, "link", "set", "bridge", "up")
        for host, space in self._spaces.items():
            port = self._ports[host]
            _do("ip", "netns", "add", space)
            _do("ip", "-n", space, "link", "add", "eth0", "type", "veth",
                "peer", "name", port, "netns", self._bridge)  # fmt: skip
            _do("ip", "-n", space, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do("ip", "-n", space, "link", "set", device, "up")
            # After rules of our own, which the kernel's first one would come before.
            _do("ip", "-n", space, "rule", "add", "pref", "100", "lookup", "local")
            _do("ip", "-n", space, "rule", "del", "pref", "0")
            _do("ip", "-n", self._bridge, "link", "set", port, "master", "bridge", "up")
        _do("ip", "-n", self._bridge, "addr", "add", _OWN, "dev", "bridge")
        _do(*self.command(next(iter(self._spaces)), ["true"]))

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """A command that runs on a host, by the pid of what it starts."""
        enter = ["nsenter", f"--net=/run/netns/{self._spaces[host]}"]
        own = ["unshare", "--mount", "--uts", "--propagation", "private"]
        return [*enter, *own, "sh", "-c", _BEGIN, str(self._hosts), host, *words]

    def publish(self) -> None:
        """From now on every host finds the others by their names."""
        with self._hosts.open("a") as known:  # in place: the mounts are of this file
            known.writelines(f"{self.addresses[h]} {name}\n" for h, name in self._names.items())

    def set_link(self, host: str, state: str) -> None:
        """Cut a host off (``down``) or connect it again (``up``)."""
        _do("ip", "-n", self._bridge, "link", "set", self._ports[host], state)

    def drop(self, source: str, target: str, *, drops: bool = True) -> None:
        """Let nothing that a host sends reach another one, or (``drops`` false) let it again."""
        which = ["pref", "1", "iif", "eth0", "from", self.addresses[source], "blackhole"]
        verb = "add" if drops else "del"
        _do("ip", "-n", self._spaces[target], "rule", verb, *which)

    def break_connections(self, one: str, other: str) -> None:
        """Break all TCP connections between two hosts, on both."""
        for host, peer in ((one, other), (other, one)):
            self._on(host, ["ss", "--kill", "--tcp", "dst", self.addresses[peer]])

    def door(self, host: str, port: int) -> "Door":
        """A port of this machine by which the test reaches one of a host."""
        return Door(self._bridge, (self.addresses[host], port))

    def lose_packets(self, host: str, part: float) -> None:
        """Drop this part of what comes to a host; needs ``packets lost by iptables``."""
        words = ["-m", "statistic", "--mode", "random", "--probability", str(part), "-j", "DROP"]
        self._on(host, ["iptables", "-A", "INPUT", *words])

    def delay_packets(self, host: str, milliseconds: int) -> None:
        """Hold back what a host sends; needs ``packets delayed by tc``."""
        self._on(host, ["tc", "qdisc", "add", "dev", "eth0", "root", "netem",
                        "delay", f"{milliseconds}ms"])  # fmt: skip

    def _on(self, host: str, words: list[str]) -> None:
        _do("ip", "netns", "exec", self._spaces[host], *words)

    def close(self) -> None:
        """Take the network away, once its processes have ended."""
        for space in (*self._spaces.values(), self._bridge):
            subprocess.run(
                ["ip", "netns", "delete", space],  # noqa: S607
                capture_output=True, check=False, timeout=60,
            )  # fmt: skip


class Door:
    """A port of this machine: what comes to it goes on from within a namespace.

    Args:
        space: The namespace.
        to: Host and port there.

    Attributes:
        address: host:port.
    """

    def __init__(self, space: str, to: tuple[str, int]) -> None:
        self._space, self._to = space, to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self._space}") as space:  # sockets of this thread are there
            if libc.setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to {self._space}")
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._to, _CONNECT_S)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE_BYTES):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _do(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
