"""A TCP port for processes that meet on this machine."""

import socket


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
