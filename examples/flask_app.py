"""A Flask app that enqueues and polls: none of its requests waits for a model.

    python examples/flask_app.py --port 5000
    curl -F image=@examples/digits/3_0705.png localhost:5000/digits
    curl localhost:5000/digits/<id>

Needs flask. One `Client` serves all threads.
"""

from __future__ import annotations

import argparse

from flask import Flask, jsonify, request, url_for

from headrace import Client
from headrace.errors import HeadraceError

app = Flask(__name__)
client = Client()


@app.post("/digits")
def submit():
    """Submit an upload and return where to poll for its result."""
    upload = request.files.get("image")
    if upload is None:
        return jsonify(error="send a form with the file `image`"), 400
    job = client.submit("digits", upload.read(), metadata={"name": upload.filename})
    return jsonify(id=job.id, poll=url_for("poll", job_id=job.id)), 202


@app.get("/digits/<job_id>")
def poll(job_id: str):
    """Return the result, or the job's status while it has not ended."""
    job = client.status(job_id)
    if not job.ended:
        return jsonify(id=job.id, status=job.status), 202
    if job.error is not None:
        return jsonify(id=job.id, status=job.status, error=job.error.message), 422
    return jsonify(id=job.id, name=job.metadata["name"], digit=job.value["digit"])


@app.errorhandler(HeadraceError)
def failed(error: HeadraceError):
    """Return Headrace's error with its message and its status."""
    return jsonify(error=error.message, code=error.code, remedy=error.hint), error.status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=5000)
    app.run(port=parser.parse_args().port, threaded=True)
