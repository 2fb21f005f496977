"""Addresses of servers: read, shown to people, and told apart.

Flows in: the address a user gave. Flows out: what requests start with, what may be written down, who is
meant.
Invariant: nothing that is written down holds a user name or password.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit, urlunsplit

from envace.errors import EnvironmentUnready, ParamsError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def base_address(url: str, what: str = "the address") -> str:
    """The address requests start with; a bare host gets `/v1`. Raises ParamsError unless it is http with a
    host."""
    base = url.strip().rstrip("/").removesuffix("/chat/completions")
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ParamsError(f"{what} {shown(url)!r} must be such as http://localhost:8000/v1")
    return base if parts.path else base + "/v1"


def below(base_url: str, path: str) -> str:
    """`path` below a base address, before its query where it has one."""
    parts = urlsplit(base_url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{path}").geturl()


def shown(url: str) -> str:
    """An address for people: without a user name and password, and without its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable)"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def host(url: str) -> str:
    """Who an address names, for records: host and port alone, since a path may hold a key too."""
    return urlsplit(url).netloc.rpartition("@")[2]


def origin(url: str) -> str:
    """scheme://host:port of an address, without path and password."""
    parts = urlsplit(url)
    name = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{name}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def is_loopback(url: str) -> bool:
    """The address is on this machine."""
    name = urlsplit(url).hostname or ""
    return name in ("localhost", "::1") or name.startswith("127.")


def ask_this_machine_directly() -> None:
    """Let no client of this process or its children ask servers on this machine through a proxy.

    Raises EnvironmentUnready for a SOCKS proxy where the package that speaks it is missing: clients made for
    any address then fail.
    """
    for variable in ("no_proxy", "NO_PROXY"):
        said = os.environ.get(variable) or os.environ.get(variable.swapcase(), "")
        names = [name.strip() for name in said.split(",") if name.strip()]
        os.environ[variable] = ",".join(dict.fromkeys((*names, *LOOPBACK)))
    for name in PROXIES:
        for variable in (name, name.upper()):
            if os.environ.get(variable, "").startswith("socks") and find_spec("socksio") is None:
                raise EnvironmentUnready(
                    f"{variable} names a SOCKS proxy, which needs the package socksio: install it, name an "
                    f"http:// proxy, or run this command with {variable} unset"
                )
