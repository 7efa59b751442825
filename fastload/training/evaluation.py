"""``evaluate``: a model's metrics over a loader, in the precision you choose; the model stays in its mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fastload.arguments import not_a_class
from fastload.structure.tree import Path, is_movable, map_movable
from fastload.training.checks import check_model
from fastload.training.precision import autocast, resolve_precision

__all__ = ["Metric", "evaluate"]

METHODS = ("update", "compute", "reset")


class Metric(Protocol):
    """The interface of torchmetrics and torcheval; your own class can have it too."""

    def update(self, outputs: Any, targets: Any, /) -> Any: ...

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    metrics: Metric | Mapping[str, Metric] | None = None,
    *,
    precision: str = "auto",
) -> Any:
    """Compute metrics of the model's outputs over all batches of a loader.

    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> model = nn.Linear(4, 2)
    >>> loader = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)]
    >>> metrics = {name: MulticlassAccuracy(num_classes=2, average=name) for name in ("micro", "macro")}
    >>> sorted(evaluate(model, loader, metrics, precision="bf16"))
    ['macro', 'micro']

    The model is set to evaluation mode; afterwards, also after an error, each of its modules is in its own mode again.
    No gradient is recorded, and the host waits for the device only where a metric does.

    Args:
        model: already on its device, which is that of its first parameter.
        loader: batches of ``(inputs, targets)`` on that device, as ``PrefetchLoader`` yields them.
        metrics: an object with ``update(outputs, targets)``, ``compute()`` and ``reset()``, such as a
            ``torchmetrics.Metric`` or ``MetricCollection``, or a mapping of names to such objects. Those with a ``to``
            method are moved to the device. They are reset at the start only, so their state can be read afterwards.
        precision: of ``model(inputs)``: ``"fp32"``, ``"bf16"``, ``"fp16"`` or ``"auto"``, as for ``TrainStep``.
            Metrics run outside autocast, and get 16-bit outputs as float32, which changes no value.

    Returns:
        What the metric's ``compute`` returns; for a mapping, a dict of these by name; without metrics, an empty dict.

    Raises:
        TypeError: the model is no module, a metric is a class or lacks a method, or a batch is not a pair.
        ValueError: ``precision`` is none of those above.

    With several ranks, each evaluates its own batches; torchmetrics combines the ranks in ``compute``.
    """
    is_one = metrics is not None and not isinstance(metrics, Mapping)
    named: Mapping[str, Any] = {"metric": metrics} if is_one else metrics or {}  # type: ignore[assignment]
    check_model(model, "model must be a torch.nn.Module")
    _check(named)
    device = next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))
    autocast_region = autocast(resolve_precision(precision, device), device)
    for metric in named.values():
        if is_movable(metric):
            metric.to(device)
        metric.reset()
    # Not inference_mode: what a model keeps from its forward pass, such as a cached table or parameters gathered by
    # FSDP2, could not be trained with.
    with torch.no_grad(), _in_evaluation_mode(model):
        for batch in loader:
            inputs, targets = _pair(batch)
            with autocast_region:
                outputs = model(inputs)
            outputs = map_movable(_widened, outputs)
            for metric in named.values():
                metric.update(outputs, targets)
    computed = {name: metric.compute() for name, metric in named.items()}
    return computed["metric"] if is_one else computed


@contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    is_training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(is_training)  # a module's own train() may do more, such as merge weights: this undoes it
        for module, mode in modes.items():
            module.training = mode


def _widened(output: Any, _: Path) -> Any:
    is_half = isinstance(output, Tensor) and output.dtype in (torch.float16, torch.bfloat16)
    return output.float() if is_half else output


def _pair(batch: Any) -> tuple[Any, Any]:
    match batch:
        case inputs, targets:
            return inputs, targets
    length = f" of {len(batch)}" if isinstance(batch, (tuple, list, Mapping)) else ""
    raise TypeError(
        f"a batch must be a pair, (inputs, targets); got a {type(batch).__name__}{length}. Turn the loader's batches "
        'into pairs, such as ((batch["image"], batch["label"]) for batch in loader)'
    )


def _check(metrics: Mapping[str, Any]) -> None:
    rule = "metrics must have update, compute and reset, or map names to objects that have them"
    for name, metric in metrics.items():
        not_a_class(rule, metric)
        missing = [method for method in METHODS if not callable(getattr(metric, method, None))]
        if missing:
            raise TypeError(f"{rule}; got {name}: a {type(metric).__name__} without {', '.join(missing)}")
