"""A FastAPI app on the asyncio client: enqueue and poll, or wait without blocking anybody.

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
    """One client for the life of the app."""
    async with AsyncClient() as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(HeadraceError)
async def failed(request: Request, error: HeadraceError) -> JSONResponse:
    """What Headrace refuses, in its own words and with its own status."""
    return JSONResponse({"error": error.message, "code": error.code}, error.status)


@app.post("/texts", status_code=202)
async def submit(request: Request, text: str) -> dict[str, str]:
    """Take a text, and say where its answer will be."""
    job = await request.app.state.client.submit("gibberish", text)
    return {"id": job.id, "poll": f"/texts/{job.id}"}


@app.get("/texts/{job_id}")
async def result(request: Request, job_id: str, wait_s: float = 0) -> dict[str, object]:
    """The answer; with `wait_s`, as soon as it is there."""
    try:
        value = await request.app.state.client.result(job_id, timeout_s=wait_s)
    except WaitTimeout:
        return {"id": job_id, "status": "not yet"}
    except JobError as error:
        raise HTTPException(422, error.message) from None
    return {"id": job_id, "status": "done", **value}
