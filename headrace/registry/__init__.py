"""The registry: which models a deployment serves, in Redis, so that they change while jobs run.

Start reading in `model.py`, which has the types and is pure; `store.py` reads and writes them.
docs/architecture/registry.md describes it. It may import `models`, `config` and the folders below
them.
"""
