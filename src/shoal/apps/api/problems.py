"""Errors as application/problem+json.

In flow exceptions; out flow answers with our stable code, the cause and the next step. Invariant: what is
not a `ShoalError` tells a stranger nothing about this machine.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from shoal.apps.api.models import Problem
from shoal.base.errors import CODES, ShoalError

log = logging.getLogger("shoal.api")
MEDIA_TYPE = "application/problem+json"
_STATUS = {
    "SH-API-01": 401,
    "SH-API-02": 404,
    "SH-API-03": 422,
    "SH-API-05": 403,
    "SH-CREDIT-02": 404,
    "SH-LEAD-02": 503,
    "SH-LEAD-03": 503,
    "SH-POOL-01": 503,
    "SH-POOL-02": 403,
    "SH-POOL-03": 422,
    "SH-RUN-01": 409,
    "SH-BLOB-01": 404,
    "SH-DISK-01": 507,
}
_FAMILIES = {"SH-RECIPE": 422, "SH-DATA": 422, "SH-MODEL": 422}


def install(app: FastAPI) -> None:
    """Make the app answer every failure as a problem."""
    app.add_exception_handler(ShoalError, _shoal_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def status_of(error: ShoalError) -> int:
    return _STATUS.get(error.code) or _FAMILIES.get(error.code.rpartition("-")[0], 500)


def _answer(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    content = problem.model_dump(exclude_none=True)
    return JSONResponse(content, problem.status, headers=headers, media_type=MEDIA_TYPE)


def _shoal_problem(error: ShoalError, status: int) -> Problem:
    return Problem(
        title=CODES[error.code],
        status=status,
        detail=error.cause,
        code=error.code,
        next_step=error.next_step,
    )


async def _shoal_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ShoalError)
    status = status_of(error)
    if (
        status >= 500 and status != 503
    ):  # That one is no failure of ours: somebody else is to be asked, or later.
        log.error("request_failed", extra={"code": error.code, "cause": error.cause})
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return _answer(_shoal_problem(error, status), headers)


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # Neither the values nor the context: they may hold what was sent.
    faults = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
    wrong = ShoalError("SH-API-03", "; ".join(faults), "see /docs for what this request takes")
    return _answer(_shoal_problem(wrong, 422))


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    next_step = "send less" if error.status_code == 413 else "see /docs for what there is"
    wrong = ShoalError("SH-API-03", str(error.detail), next_step)
    headers = dict(error.headers) if error.headers else None
    return _answer(_shoal_problem(wrong, error.status_code), headers)


async def _unexpected(_: Request, error: Exception) -> JSONResponse:
    log.error("request_failed", exc_info=error)
    cause = f"what it met is not foreseen: {type(error).__name__}"  # Its words may hold what was sent.
    unforeseen = ShoalError("SH-API-06", cause, "look into the coordinator's log, and report it")
    return _answer(_shoal_problem(unforeseen, 500))
