"""Who may do what: tokens with roles, hosts that are answered, and browsers that may only act from the page itself.

A request carries its token as `Authorization: Bearer …`; the page trades it for a cookie that scripts cannot read and
other sites' requests do not carry. Tokens are compared in constant time and appear in no log, no url and no page.
Without tokens every client that reaches the server may do everything, which is why that is only allowed on this
machine; and there the Host header must name this machine, which protects it from a web site that renames itself (DNS
rebinding)."""

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
"""Sessions of one token; the oldest ends when there are more."""
SHORTEST_TOKEN = 16
GUESS_SECONDS = 60.0
MOST_GUESSERS = 10_000
"""Addresses whose wrong tokens are remembered; as many are remembered with a right one."""
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
        """By token: the hashes of its cookies, with the role they stand for and until when."""
        self._guesses: OrderedDict[str, tuple[float, set[bytes]]] = OrderedDict()
        """By address: when a minute of wrong tokens began, and which there were."""
        self._proven: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Addresses and the right tokens that came from them."""

    @property
    def open(self) -> bool:
        """True if no token is asked for."""
        return not self._tokens

    # ── who ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def role_of_token(self, token: str) -> Role | None:
        """The role a token has. Every known token is compared, whichever matches, so the time taken says nothing."""
        given = _digest(token)
        found: Role | None = None
        for known, role in self._tokens:
            if hmac.compare_digest(known, given):
                found = role
        return found

    def role(self, connection: HTTPConnection) -> Role | None:
        """The role of a request's sender; None when it brings nothing that is known."""
        if self.open:
            return "admin"
        token = _bearer(connection)
        if token is not None:
            return self.role_from(address_of(connection), token)
        return self._session_of(connection)[0]

    def identity(self, connection: HTTPConnection) -> str:
        """Who sent a request, for the record: the beginning of its token's hash, `local` without tokens."""
        if self.open:
            return "local"
        token = _bearer(connection)
        return self._session_of(connection)[1] if token is None else fingerprint(token)

    def require(self, connection: HTTPConnection, role: Role, doing: str = "this") -> Role:
        """The sender's role; Refused when it may not do what needs `role`."""
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
        """Refused when a topic takes no events from clients: penstock's own do not, but for what programs report."""
        if topic not in REPORTS:
            self.check_change(topic)

    def check_change(self, name: str) -> None:
        """Refused when a topic or queue is penstock's own: no role changes it from outside."""
        if is_system(name):
            raise Refused(403, "Forbidden", f"{name[:80]!r} is penstock's own: it is changed only where the store is")

    # ── sessions of the page ─────────────────────────────────────────────────────────────────────────────────────────
    def session(self, token: str, role: Role) -> str:
        """A cookie's value that stands for a token's role for some hours, in this server's lifetime."""
        who, secret = fingerprint(token), secrets.token_hex(32)
        own = self._sessions.setdefault(who, OrderedDict())
        _remember(own, _digest(secret), (role, time.time() + SESSION_SECONDS), MOST_SESSIONS)
        return f"{who}.{secret}"

    def end_session(self, connection: HTTPConnection) -> None:
        """Makes a request's cookie worthless, wherever a copy of it is."""
        who, _, secret = connection.cookies.get(COOKIE, "").partition(".")
        if who in self._sessions:
            self._sessions[who].pop(_digest(secret), None)

    def _session_of(self, connection: HTTPConnection) -> tuple[Role | None, str]:
        """The role and the identity that a request's cookie stands for: none, and an empty one, when it has ended."""
        who, _, secret = connection.cookies.get(COOKIE, "").partition(".")
        found = self._sessions.get(who, OrderedDict()).get(_digest(secret))
        return (None, "") if found is None or found[1] < time.time() else (found[0], who)

    # ── guessing ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def role_from(self, address: str, token: str) -> Role | None:
        """The role of a token that came from an address; Refused when too many wrong ones came from there in a minute.

        Then only a token is taken that was right before from the same address, so that a guesser behind a shared
        address stops no program that is at work there. The same wrong token again is no new guess.
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
        """Refused when the request was made for another name than this server's, or by another site's page."""
        host, origin, site = "", None, "same-origin"
        for name, value in reversed(connection.scope["headers"]):  # once for all of them: of several the first counts
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
        # Browsers say where a request comes from; programs say nothing, and no site can make them send one.
        is_foreign = origin is not None and origin.partition("://")[2].lower() != host.lower()
        if is_foreign or site not in ("same-origin", "none"):
            raise Refused(403, "CrossSite", "requests that change something are not taken from other sites' pages")


def _remember(kept: OrderedDict[K, V], key: K, value: V, most: int = MOST_GUESSERS) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)


def _bearer(connection: HTTPConnection) -> str | None:
    """The token that a request brings in its header."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address_of(connection: HTTPConnection) -> str:
    """Returns the address that a request came from: the other end of its connection, or what a proxy said that the
    operator named."""
    return connection.client.host if connection.client else ""


def _guesser_address(address: str) -> str:
    """Who tries tokens from an address: of IPv6 the network of 64 bits that one customer has, and may change in."""
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


def fingerprint(token: str) -> str:
    """Returns the name of a token in records: enough of its hash to tell tokens apart, too little to find one."""
    return _digest(token).hex()[:10]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _host_name(host: str) -> str:
    """A Host header without its port."""
    name = host.lower().strip()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if ":" in name else name
