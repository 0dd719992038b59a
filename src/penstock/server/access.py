"""The permissions of clients: tokens with roles, the hosts that the server answers for, and browsers, which may act
only from the console itself.

A request carries its token as `Authorization: Bearer …`. The page exchanges the token for a cookie; scripts cannot read
this cookie, and requests from other sites do not carry it. Tokens are compared in constant time and appear in no log,
no url and no page. Without tokens, every client that reaches the server may do everything. That is why a server without
tokens is allowed on this machine only. There, the Host header must name this machine, which protects the server from a
web site that renames itself (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from starlette.requests import HTTPConnection

from penstock.core.local.topics import REPORTS
from penstock.core.names import is_system
from penstock.core.protocol.operation import ROLES, Role
from penstock.errors import ConfigError
from penstock.server.limits import Limits
from penstock.server.service import Refused

K = TypeVar("K")
V = TypeVar("V")

COOKIE = "penstock_session"
SESSION_SECONDS = 12 * 3600
MOST_SESSIONS = 1_000
"""The maximum number of sessions of one token. When there are more, the oldest session ends."""
SHORTEST_TOKEN = 16
GUESS_SECONDS = 60.0
MOST_GUESSERS = 10_000
"""The number of addresses whose wrong tokens are remembered. As many addresses with a right token are remembered."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Access:
    """Decides what a request may do."""

    def __init__(
        self,
        tokens: Mapping[str, Role] | None = None,
        hosts: Iterable[str] | None = None,
        wrong_tokens: int = Limits.wrong_tokens,
    ) -> None:
        self._most_guesses = wrong_tokens
        self._tokens: list[tuple[bytes, Role]] = []
        for token, role in (tokens or {}).items():
            if role not in ROLES:
                raise ConfigError(f"a role is one of {', '.join(ROLES)}, not {role!r}")
            if not isinstance(token, str) or len(token) < SHORTEST_TOKEN or not token.isascii():
                raise ConfigError(
                    f"a token is at least {SHORTEST_TOKEN} plain characters; `openssl rand -hex 32` makes one"
                )
            self._tokens.append((_digest(token), role))
        if hosts is None:
            hosts = () if self._tokens else LOCAL_HOSTS
        self._hosts = frozenset(host.lower() for host in hosts)
        self._sessions: dict[str, OrderedDict[bytes, tuple[Role, float]]] = {}
        """The cookies of each token: the hash of each cookie, with its role and the time when it ends."""
        self._guesses: OrderedDict[str, tuple[float, set[bytes]]] = OrderedDict()
        """The wrong tokens of each address: the time when their minute began, and their hashes."""
        self._proven: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Addresses, each with a right token that came from it."""

    @property
    def open(self) -> bool:
        """True if no request needs a token."""
        return not self._tokens

    # ── who ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def role_of_token(self, token: str) -> Role | None:
        """Returns the role of a token.

        The token is compared with every known token, so the time of the comparison reveals nothing.
        """
        given = _digest(token)
        found: Role | None = None
        for known, role in self._tokens:
            if hmac.compare_digest(known, given):
                found = role
        return found

    def role(self, connection: HTTPConnection) -> Role | None:
        """Returns the role of a request's sender; None when the request has no known token or cookie."""
        if self.open:
            return "admin"
        token = _bearer(connection)
        if token is not None:
            return self.role_from(address_of(connection), token)
        return self._session_of(connection)[0]

    def identity(self, connection: HTTPConnection) -> str:
        """Returns the sender of a request, for records: the beginning of its token's hash, or `local` without
        tokens.
        """
        if self.open:
            return "local"
        token = _bearer(connection)
        return self._session_of(connection)[1] if token is None else fingerprint(token)

    def require(self, connection: HTTPConnection, role: Role, doing: str = "this") -> Role:
        """Returns the sender's role. Raises Refused when this role may not do what needs `role`."""
        has = self.role(connection)
        if has is None:
            why = "this needs a token" if _bearer(connection) is None else "the token is none of this server's"
            raise Refused(
                401,
                "Unauthorized",
                f"{why}: send one as `Authorization: Bearer …`; token=, PENSTOCK_TOKEN",
                {"WWW-Authenticate": 'Bearer realm="penstock"'},
            )
        if ROLES.index(has) < ROLES.index(role):
            raise Refused(403, "Forbidden", f"{doing} needs the role {role}; the token's role is {has}")
        return has

    def check_append(self, topic: str) -> None:
        """Raises Refused when a topic takes no events from clients.

        Penstock's own topics take none, except for the reports of programs.
        """
        if topic not in REPORTS:
            self.check_change(topic)

    def check_change(self, name: str) -> None:
        """Raises Refused when a topic or queue is penstock's own: no role may change it from outside."""
        if is_system(name):
            raise Refused(403, "Forbidden", f"{name[:80]!r} is penstock's own: it is changed only where the store is")

    # ── sessions of the page ─────────────────────────────────────────────────────────────────────────────────────────
    def session(self, token: str, role: Role) -> str:
        """Returns the value of a new cookie.

        The cookie stands for a token's role for some hours, and only while this server runs.
        """
        who, secret = fingerprint(token), secrets.token_hex(32)
        own = self._sessions.setdefault(who, OrderedDict())
        _remember(own, _digest(secret), (role, time.time() + SESSION_SECONDS), MOST_SESSIONS)
        return f"{who}.{secret}"

    def end_session(self, connection: HTTPConnection) -> None:
        """Ends the session of a request's cookie: every copy of the cookie becomes worthless."""
        who, _, secret = connection.cookies.get(COOKIE, "").partition(".")
        if who in self._sessions:
            self._sessions[who].pop(_digest(secret), None)

    def _session_of(self, connection: HTTPConnection) -> tuple[Role | None, str]:
        """Returns the role and the identity that a request's cookie stands for; None and an empty text when its
        session has ended.
        """
        who, _, secret = connection.cookies.get(COOKIE, "").partition(".")
        found = self._sessions.get(who, OrderedDict()).get(_digest(secret))
        return (None, "") if found is None or found[1] < time.time() else (found[0], who)

    # ── guessing ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def role_from(self, address: str, token: str) -> Role | None:
        """Returns the role of a token that came from an address.

        Raises Refused when too many wrong tokens came from this address within a minute.

        During such a minute, a token is accepted only if it was right before from the same address. So a guesser behind
        a shared address does not stop the programs that work there. The same wrong token again does not count as a new
        guess.
        """
        address, digest, now = _guesser_address(address), _digest(token), time.monotonic()
        begun, wrong = self._guesses.get(address, (now, set()))
        left = begun + GUESS_SECONDS - now
        if len(wrong) >= self._most_guesses and left > 0 and (address, digest) not in self._proven:
            raise Refused(
                429,
                "TooManyGuesses",
                "too many wrong tokens came from this address: wait a minute",
                {"Retry-After": str(max(1, round(left)))},
            )
        role = self.role_of_token(token)
        if role is not None:
            _remember(self._proven, (address, digest), None)
        elif left > 0:
            _remember(self._guesses, address, (begun, wrong | {digest}))
        else:
            _remember(self._guesses, address, (now, {digest}))
        return role

    # ── where from ───────────────────────────────────────────────────────────────────────────────────────────────────
    def check_origin(self, connection: HTTPConnection, method: str) -> None:
        """Raises Refused when the request names another host than this server, or comes from another site's page."""
        host, origin, site = "", None, "same-origin"
        # one pass for all three headers; the first of several equal headers counts
        for name, value in reversed(connection.scope["headers"]):
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
            elif name == b"sec-fetch-site":
                site = value.decode("latin-1")
        if self._hosts and _host_name(host) not in self._hosts:
            raise Refused(421, "WrongHost", f"this server does not answer for {host[:80]!r}; name it with --allow-host")
        if method in _SAFE_METHODS:
            return
        # Browsers name the origin of a request. Programs name none, and no site can make a program send a request.
        is_foreign = origin is not None and origin.partition("://")[2].lower() != host.lower()
        if is_foreign or site not in ("same-origin", "none"):
            raise Refused(403, "CrossSite", "requests that change something are not taken from other sites' pages")


def _remember(kept: OrderedDict[K, V], key: K, value: V, most: int = MOST_GUESSERS) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)


def _bearer(connection: HTTPConnection) -> str | None:
    """Returns the token in the header of a request."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address_of(connection: HTTPConnection) -> str:
    """Returns the address that a request came from: the other end of its connection, or the address that a trusted
    proxy reports.
    """
    return connection.client.host if connection.client else ""


def _guesser_address(address: str) -> str:
    """Returns the address for which wrong tokens are counted.

    For IPv6 it is the 64-bit network: a customer has the whole network and may change addresses in it.
    """
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


def fingerprint(token: str) -> str:
    """Returns the name of a token in records: enough of its hash to tell tokens apart, and too little to find the
    token.
    """
    return _digest(token).hex()[:10]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _host_name(host: str) -> str:
    """Returns a Host header without its port."""
    name = host.lower().strip()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if ":" in name else name
