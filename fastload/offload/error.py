"""``CannotOffloadError``: it is not certain that training would see the same."""

from __future__ import annotations

__all__ = ["CannotOffloadError"]


class CannotOffloadError(TypeError):
    """What ``fl.offload`` refuses; the message is the reason."""
