"""Python runs this as it starts, where ``PYTHONPATH`` names this folder: see ``tests/native_threads.py``."""

from tests.native_threads import let_gloo_rest

let_gloo_rest()
