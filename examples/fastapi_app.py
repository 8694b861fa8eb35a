"""A FastAPI app on the asyncio client: enqueue and poll, or wait without blocking other requests.

    uvicorn --app-dir examples fastapi_app:app --port 5001
    curl -X POST 'localhost:5001/texts?text=asdfghjkl+qwertz'
    curl 'localhost:5001/texts/<id>?wait_s=10'

Needs fastapi and uvicorn, and the model of examples/gibberish.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from headrace import AsyncClient
from headrace.errors import HeadraceError, JobError, WaitTimeout


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one client for the life of the app."""
    async with AsyncClient() as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(HeadraceError)
async def failed(request: Request, error: HeadraceError) -> JSONResponse:
    """Return Headrace's error with its message and its status."""
    return JSONResponse({"error": error.message, "code": error.code}, error.status)


@app.post("/texts", status_code=202)
async def submit(request: Request, text: str) -> dict[str, str]:
    """Submit a text and return the id of its job."""
    job = await request.app.state.client.submit("gibberish", text)
    return {"id": job.id, "poll": f"/texts/{job.id}"}


@app.get("/texts/{job_id}")
async def result(request: Request, job_id: str, wait_s: float = 0) -> dict[str, object]:
    """Return the result; with `wait_s`, wait for it."""
    try:
        value = await request.app.state.client.result(job_id, timeout_s=wait_s)
    except WaitTimeout:
        return {"id": job_id, "status": "not yet"}
    except JobError as error:
        raise HTTPException(422, error.message) from None
    return {"id": job_id, "status": "done", **value}
