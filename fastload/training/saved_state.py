"""Checks the state given to ``TrainStep.load_state_dict`` as a whole, so that a wrong one changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastload.training.ema import EMA
from fastload.training.tensors import described

__all__ = ["check_state"]

Check = Callable[[Any], bool]


def check_state(
    state: object, scaler: torch.amp.GradScaler, ema: EMA | None, schedulers: int, parameters: Sequence[Tensor]
) -> None:
    """Raise unless ``state`` is what the ``state_dict`` of a step of this kind returns.

    TypeError: it, or a part that should be, is no mapping. ValueError: an entry is missing or has a value that no step
    saves, or it was saved with another scaler, EMA, number of schedulers or model.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"the state must be what step.state_dict() returned; got {described(state)}")
    _check_entries(state, _STEP, "the state")
    _check_entries(state["window"], _WINDOW, "the state's 'window'")
    _check_entries(state["watch"], {"seen": _is_list}, "the state's 'watch'")
    for seen in state["watch"]["seen"]:
        _check_entries(seen, _SEEN, "an entry of the state's 'watch'")
    _check_made_alike(state, scaler, ema, schedulers)
    if scaler.is_enabled():
        _check_entries(state["scaler"], dict.fromkeys(scaler.state_dict(), _is_number), "the state's 'scaler'")
    if ema is not None:
        ema.check_state(state["ema"])
    _check_gradients(state["gradients"], state["window"]["batches"], parameters)


def _check_entries(state: object, checks: Mapping[str, Check], where: str) -> None:
    if not isinstance(state, Mapping):
        raise TypeError(f"{where} must be a dict with {', '.join(map(repr, checks))}; got {described(state)}")
    if missing := [name for name in checks if name not in state]:
        raise ValueError(
            f"{where} must be what step.state_dict() returned; it lacks {', '.join(map(repr, missing))}, and has "
            f"{', '.join(map(repr, state)) or 'nothing'}"
        )
    for name, is_right in checks.items():
        if not is_right(state[name]):
            got = described(state[name]) if isinstance(state[name], Tensor) else repr(state[name])
            raise ValueError(f"{where} has a {name!r} that no step saves; got {got:.100}")


def _check_made_alike(state: Mapping[str, Any], scaler: torch.amp.GradScaler, ema: EMA | None, schedulers: int) -> None:
    for what, was, now in (
        ("an enabled scaler", bool(state["scaler"]), scaler.is_enabled()),
        ("an EMA", state["ema"] is not None, ema is not None),
        ("a scheduler", bool(state["schedulers"]), schedulers > 0),
    ):
        if was is not now:
            saved, made = ("with", "without") if was else ("without", "with")
            raise ValueError(
                f"the state was saved {saved} {what}, but this step was made {made}. Make it as the saved one was"
            )
    if (saved_schedulers := len(state["schedulers"])) != schedulers:
        raise ValueError(f"the state has {saved_schedulers} schedulers, but this step was made with {schedulers}")


def _check_gradients(gradients: Sequence[Any], batches: int, parameters: Sequence[Tensor]) -> None:
    expected = len(parameters) if batches else 0
    if len(gradients) != expected:
        raise ValueError(
            f"the state must have a gradient, or None, for each of {expected} parameters; got {len(gradients)}. It is "
            "of another model, or of other optimizers"
        )
    for number, (gradient, parameter) in enumerate(zip(gradients, parameters, strict=False)):
        if gradient is not None and (not isinstance(gradient, Tensor) or gradient.shape != parameter.shape):
            raise ValueError(
                f"gradient {number} of the state must be None or a tensor of shape {tuple(parameter.shape)}; got "
                f"{described(gradient)}"
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


_STEP: dict[str, Check] = {
    "batches": _is_count,
    "windows": _is_count,
    "updates": _is_count,
    "place": _is_count,
    "complaint": lambda value: value is None or isinstance(value, str),
    "scaler": _is_dict,
    "schedulers": lambda value: _is_list(value) and all(map(_is_dict, value)),
    "ema": lambda value: value is None or _is_dict(value),
    "window": _is_dict,
    "watch": _is_dict,
    "gradients": _is_list,
}
_WINDOW: dict[str, Check] = {
    "size": lambda value: _is_count(value) and value > 0,
    "batches": _is_count,
    "items": lambda value: value is None or _is_number(value) or _is_scalar(value),
}
_SEEN: dict[str, Check] = {
    "loss": _is_scalar,
    "terms": lambda value: _is_dict(value) and all(map(_is_scalar, value.values())),
    "number": _is_count,
    "place": lambda value: value is None or _is_count(value),
}
