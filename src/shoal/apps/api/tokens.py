"""Who may do what: four scopes, each with a token of its own.

In flow the token files of a home; out flows the scope of a secret. Invariant: a scope includes those before it, and
secrets are compared in constant time, all of them, whichever is right.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

from shoal.apps.home import Home, admin_token, read_secret, write_secret

Scope = Literal["lend", "view", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("lend", "view", "operate", "admin")
"""lend offers a machine to the pool, and nothing else; view reads; operate starts, pauses and stops runs and lets nodes
in; admin takes back what was trained."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The secret of each scope."""

    by_scope: tuple[tuple[Scope, str], ...]

    def scope_of(self, said: str) -> Scope | None:
        """What this secret allows, or None."""
        found: Scope | None = None
        for scope, secret in self.by_scope:
            if hmac.compare_digest(said.encode(), secret.encode()):
                found = scope
        return found


def allows(scope: Scope, needed: Scope) -> bool:
    return SCOPES.index(scope) >= SCOPES.index(needed)


def load_tokens(home: Home) -> Tokens:
    """Every scope's token, made on first use. They lie beside the admin token."""
    lesser = tuple((scope, _token(home, scope)) for scope in SCOPES[:-1])
    return Tokens((*lesser, ("admin", admin_token(home))))


def _token(home: Home, scope: Scope) -> str:
    path = home.coordinator / f"{scope}-token"
    known = read_secret(path)
    if known is None:
        known = secrets.token_urlsafe(32)
        write_secret(path, known)
    return known
