"""What a coordinator that stands by answers over HTTP: who leads.

In flow requests; out flows SH-LEAD-03, whatever was asked. Invariant: nobody waits for what only a leader can answer.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from shoal.apps.api.problems import install
from shoal.base.errors import ShoalError


def make_standing_app(leader: Callable[[], str]) -> FastAPI:
    """An app that has but one answer; `leader` says at which control address the leader is."""
    app = FastAPI(openapi_url=None)
    install(app)

    @app.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
    async def stand_by(path: str) -> None:
        raise ShoalError(
            "SH-LEAD-03",
            f"this coordinator stands by: the one at {leader()} leads",
            "ask that one's HTTP API: name it with --server, or give its --home",
        )

    return app
