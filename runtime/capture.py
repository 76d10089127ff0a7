"""Capture a training step's forward, from batch to loss, as one graph with layers.

The model runs once, forward only, on a copy of the batch; its buffers and the random state are as before afterwards.
Tracing is PyTorch's own (`torch.compile` with a backend of ours); each placeholder is recognized as a parameter, a
buffer or a leaf of the batch by the identity of the tensor that the tracer passes for it.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from pibroch.runtime.annotate import counting, restart
from pibroch.runtime.captured import Captured, NodeInfo, ancestors, flatten_batch
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import ParamSpec
from pibroch.runtime.observe import Observer
from pibroch.runtime.regions import divide

__all__ = ["Captured", "capture", "flatten_batch"]


def capture(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any, *, name: str, clip: bool = False
) -> Captured:
    """Capture `loss(model, batch)` for batches of these shapes.

    The loss is a scalar tensor (the mean over the batch), or (sum, count) with a count that depends on the batch alone.
    `clip` tells lowering that gradients are to be clipped.
    Raises `InputError`, which names `name` and the cause, where the model cannot be captured: no annotated region, a
    graph break, a buffer that forward assigns anew, an in-place change that a cut would break.
    """
    copied = _copy(batch)
    leaves = flatten_batch(copied)
    before = dict(model.named_buffers())
    run = _trace(model, loss, copied, name=name)
    observer, result = run.observer, run.result
    assert observer is not None
    graph = run.module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    bindings, constants = _bind(model, leaves, placeholders, run.inputs, name=name)
    loss_value, count_value = _loss_and_count(result, name=name)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    outputs = list(zip(output.args[0], observer.results, strict=True))
    known = [*outputs, *zip(placeholders, run.inputs, strict=True)]
    loss_node = _find(loss_value, known)
    count_node = _find(count_value, known) if isinstance(count_value, Tensor) else None
    if loss_node is None or loss_node.op == "placeholder" or not loss_value.requires_grad:
        raise InputError(f"{name}: the loss does not depend on any trainable parameter")
    if isinstance(count_value, Tensor) and count_node is None:
        count_value = count_value.item()  # a constant of the trace
    _refuse_side_effects(model, before, outputs, {loss_node, count_node}, name=name)
    for node in constants:
        _make_constant(run.module, node, run.inputs[placeholders.index(node)], observer)
    params = {
        path: ParamSpec(path, tuple(p.shape), str(p.dtype).removeprefix("torch."), p.requires_grad)
        for path, p in model.named_parameters()
    }
    graph.erase_node(output)
    regions = divide(
        name=name, graph=graph, facts=observer.facts, bindings=bindings, params=params, loss=loss_node, count=count_node
    )
    if count_node is not None:
        _check_count(count_node, regions.info, bindings, name=name)
    attributes = {str(n.target): getattr(run.module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    count = count_node.name if count_node is not None else count_value
    assert not isinstance(count, Tensor)
    home = loss_value.device.type
    spec = replace(regions.spec, clip=clip)
    return Captured(name, spec, _clean(graph), regions.info, bindings, loss_node.name, home, count, attributes)


class _Run:
    """The backend: keeps the graph that it is given, and observes it when the compiled function runs."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self.buffers = buffers
        self.module: fx.GraphModule = fx.GraphModule({}, fx.Graph())
        self.observer: Observer | None = None
        self.inputs: tuple[Any, ...] = ()
        self.result: Any = None

    def __call__(self, module: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        self.module = module

        def observe(*inputs: Any) -> tuple[Any, ...]:
            self.inputs = inputs
            self.observer = Observer(module, self.buffers)
            return self.observer.observe(*inputs)

        return observe


def _trace(model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any, *, name: str) -> _Run:
    run = _Run(list(model.buffers()))

    # The argument's name shows up in the names of placeholders that come from the batch (`_bind`).
    def forward(pibroch_batch: Any) -> Any:
        restart()
        return loss(model, pibroch_batch)

    function = torch.compile(forward, backend=run, fullgraph=True, dynamic=False)
    try:
        torch._dynamo.reset()
        with _quiet(), _silent_loggers(), counting(), torch.enable_grad(), fx.traceback.preserve_node_meta():
            run.result = function(batch)
    except Exception as error:  # anything that the user's code or the tracer raises
        raise InputError(f"{name}: the model cannot be captured as one graph: {_reason(error)}") from error
    finally:
        if run.observer is not None:
            run.observer.restore()
        torch._dynamo.reset()
    if run.observer is None:
        raise InputError(
            f"{name}: nothing was traced: the loss depends on no tensor of the batch or the model, "
            f"or torch.compile is turned off (TORCHDYNAMO_DISABLE)"
        )
    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings or log lines of the tracer."""
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _silent_loggers() -> AbstractContextManager[None]:
    """Let the tracer skip calls of `logging`'s methods in the model instead of giving up on them."""
    config: Any = torch._dynamo.config
    option = "ignore_logging_functions" if hasattr(config, "ignore_logging_functions") else "ignore_logger_methods"
    methods = {method for method in vars(logging.Logger).values() if callable(method)}
    patched: AbstractContextManager[None] = config.patch({option: methods | {*getattr(config, option)}})
    return patched


def _reason(error: BaseException) -> str:
    """The first telling line of a tracer's error, with the place in the user's code where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    detail = next((line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")), "")
    stack = getattr(error, "real_stack", None)
    place = f" ({stack[-1].filename}:{stack[-1].lineno}: {stack[-1].line})" if stack else ""
    return f"{reason}{': ' + detail if detail else ''}{place}"


def _copy(batch: Any) -> Any:
    """The batch with every tensor cloned: no two leaves are one tensor, and the caller's stay as they are."""
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_copy, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(_copy, batch))
    if isinstance(batch, Mapping):
        copied: Any = copy.copy(batch)
        for key, value in batch.items():
            copied[key] = _copy(value)
        return copied
    return batch


def _bind(
    model: nn.Module, leaves: dict[str, Tensor], placeholders: list[fx.Node], inputs: tuple[Any, ...], *, name: str
) -> tuple[dict[str, tuple[str, str]], list[fx.Node]]:
    known: dict[int, tuple[str, str]] = {id(leaf): ("batch", path) for path, leaf in leaves.items()}
    known.update({id(buffer): ("buffer", path) for path, buffer in model.named_buffers()})
    known.update({id(parameter): ("param", path) for path, parameter in model.named_parameters()})
    bindings: dict[str, tuple[str, str]] = {}
    constants: list[fx.Node] = []
    for node, value in zip(placeholders, inputs, strict=True):
        if id(value) in known:
            bindings[node.name] = known[id(value)]
        elif "pibroch_batch" in f"{node.name} {node.target}":
            raise InputError(
                f"{name}: the batch holds a tensor where it cannot be split: use mappings, lists and tuples of tensors"
            )
        elif not isinstance(value, Tensor):
            raise InputError(f"{name}: {node.target} is an input that is not a tensor ({type(value).__name__})")
        elif value.requires_grad:
            raise InputError(
                f"{name}: {node.target} is a trainable tensor that is no parameter of the model: register it there"
            )
        else:
            constants.append(node)
    return bindings, constants


def _loss_and_count(result: Any, *, name: str) -> tuple[Tensor, Any]:
    loss, count = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    if not isinstance(loss, Tensor) or loss.ndim:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"{name}: the loss must be a scalar tensor or a pair (sum, count), not {what}")
    if count is None and loss is not result:
        raise InputError(f"{name}: the loss is a pair without a count: return (sum, count) or the mean alone")
    if isinstance(count, Tensor) and count.ndim:
        raise InputError(f"{name}: the count must be a scalar, not a tensor of shape {tuple(count.shape)}")
    if count is not None and not isinstance(count, Tensor | int | float):
        raise InputError(f"{name}: the count must be a scalar tensor or a number, not {type(count).__name__}")
    return loss, count


def _find(value: Any, known: list[tuple[fx.Node, Any]]) -> fx.Node | None:
    return next((node for node, seen in known if seen is value), None)


def _refuse_side_effects(
    model: nn.Module,
    before: dict[str, Tensor],
    outputs: list[tuple[fx.Node, Any]],
    expected: set[fx.Node | None],
    *,
    name: str,
) -> None:
    after = dict(model.named_buffers())
    assigned = [path for path in {**before, **after} if before.get(path) is not after.get(path)]
    if assigned:
        raise InputError(
            f"{name}: forward assigns the buffer {assigned[0]} anew: change it in place (copy_, add_) instead"
        )
    for node, _ in outputs:
        if node not in expected:
            raise InputError(
                f"{name}: forward stores the tensor {node.name} outside of the loss "
                f"(an attribute, a list, a global): return it no other way than through the loss"
            )


def _make_constant(module: fx.GraphModule, node: fx.Node, value: Tensor, observer: Observer) -> None:
    """A tensor from outside of model and batch (a closure, a plain attribute) becomes part of the graph."""
    module.register_buffer(node.name, value.detach())
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(node.name)
    observer.facts[constant] = observer.facts.pop(node)
    node.replace_all_uses_with(constant)
    module.graph.erase_node(node)


def _check_count(
    count: fx.Node, info: Mapping[str, NodeInfo], bindings: Mapping[str, tuple[str, str]], *, name: str
) -> None:
    nodes = ancestors(count)
    for kind, what in (bindings[node.name] for node in nodes if node.op == "placeholder"):
        if kind != "batch":
            raise InputError(f"{name}: the loss's count depends on the {kind} {what}: it must follow from the batch")
    if odd := [node.name for node in nodes if not info[node.name].derived]:
        raise InputError(f"{name}: the loss's count is random or changed in place: {min(odd)}")


def _clean(graph: fx.Graph) -> fx.Graph:
    """A copy without the tracer's notes (fake tensors, stack traces), which are large and do not pickle."""
    clean = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        nodes[node] = clean.node_copy(node, nodes.__getitem__)
        nodes[node].meta = {}
    return clean
