"""Adapters, one module for each framework: each puts ``PrefetchLoader`` where its framework expects a loader.

Import them by name, as in ``from fastload.integrations.lightning import Prefetch``; ``import fastload`` imports none.
Without one, wrap what the framework prepared, as ``fl.PrefetchLoader(accelerator.prepare(loader))``.
"""
