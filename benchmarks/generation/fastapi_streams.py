"""A bare loop of server-sent events in FastAPI.

    python benchmarks/generation/fastapi_streams.py PORT

A request is a POST to `/predict` with `{"pieces": N}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse


async def events(count: int) -> AsyncIterator[str]:
    """Yield pieces as events."""
    for number in range(count):
        yield f"data: {json.dumps(f'piece {number:4} of it ')}\n\n"
        await asyncio.sleep(0)


app = FastAPI()


@app.post("/predict")
async def predict(request: Request) -> StreamingResponse:
    """Stream as many pieces as the request has."""
    count = (await request.json())["pieces"]
    return StreamingResponse(events(count), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
