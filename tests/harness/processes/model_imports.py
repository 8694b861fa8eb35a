"""Imports the code of model processes by the names that it has there, for those that are forked."""

from __future__ import annotations

import importlib
import sys

from headrace._server import imports
from headrace.observability.redaction import of_environment

_finders = sys.meta_path[:]
imports.install()
importlib.import_module("headrace._server.workers.model_process.__main__")
sys.meta_path[:] = _finders
# The outcomes that are built with the import have asked for it.
of_environment.cache_clear()
