"""ONNX models as PyTorch runs them: each node as the call that one would write, on tensors of one device.

What depends on no input is computed once. Only what the models of `models.md` are made of is known.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as functional
from onnx import helper, numpy_helper

Tensor: TypeAlias = Any
Call: TypeAlias = Callable[..., Any]


def _divided(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _largest(x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.dim())), keepdim=True)


_SIMPLE: dict[str, Call] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _divided,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "GlobalMaxPool": _largest,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": torch.maximum,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Where": torch.where,
}

_REDUCTIONS: dict[str, Call] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: x.norm(dim=axes, keepdim=keep),
}


def _ints(tensor: Tensor) -> list[int]:
    return [int(each) for each in tensor.reshape(-1).tolist()]


def _pads(pads: Sequence[int]) -> list[int]:
    """ONNX's, all beginnings and then all ends, as torch has them: pairs, the last dimension first."""
    half = len(pads) // 2
    return [pads[at + half * side] for at in reversed(range(half)) for side in (0, 1)]


def _auto_pads(has: Mapping[str, Any], sizes: Sequence[int], window: Sequence[int], pads: Sequence[int]) -> list[int]:
    """The pads of a node whose `auto_pad` says so, else `pads`."""
    auto, rank = has.get("auto_pad", b"NOTSET").decode(), len(sizes)
    if not auto.startswith("SAME"):
        return list(pads)
    strides, dilations = has.get("strides", [1] * rank), has.get("dilations", [1] * rank)
    first = []
    second = []
    for size, own, stride, dilation in zip(sizes, window, strides, dilations, strict=True):
        missing = max((-(-size // stride) - 1) * stride + (own - 1) * dilation + 1 - size, 0)
        first.append(missing // 2 if auto == "SAME_UPPER" else missing - missing // 2)
        second.append(missing - first[-1])
    return first + second


class TorchModel:
    """A model for inputs of the sizes of `inputs`, on `device`."""

    def __init__(self, proto: Any, inputs: Mapping[str, Any], device: str) -> None:
        self.device = device
        graph = proto.graph
        self._opset = next(each.version for each in proto.opset_import if each.domain in ("", "ai.onnx"))
        self._known: dict[str, Tensor] = {
            each.name: torch.from_numpy(numpy_helper.to_array(each).copy()).to(device) for each in graph.initializer
        }
        self.inputs = [each.name for each in graph.input if each.name not in self._known]
        self.outputs = [each.name for each in graph.output]
        values: dict[str, Tensor] = {name: torch.from_numpy(np.array(inputs[name])).to(device) for name in self.inputs}
        self._steps: list[tuple[Call, list[str], list[str]]] = []
        with torch.inference_mode():
            for node in graph.node:
                self._add(node, values)
        wanted = set(self.outputs)
        kept = []
        for step in reversed(self._steps):  # what nobody reads is not computed
            if wanted & set(step[2]):
                wanted |= set(step[1])
                kept.append(step)
        self._steps = kept[::-1]

    def __call__(self, *given: Tensor) -> list[Tensor]:
        values = dict(zip(self.inputs, given, strict=True))
        for call, names, made in self._steps:
            results = call(*(values[name] for name in names))
            if len(made) == 1:
                values[made[0]] = results
            else:
                values.update(zip(made, results, strict=True))
        return [values[name] if name in values else self._known[name] for name in self.outputs]

    def _add(self, node: Any, values: dict[str, Tensor]) -> None:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Constant":
            self._known[node.output[0]] = torch.from_numpy(numpy_helper.to_array(attributes["value"]).copy()).to(
                self.device
            )
            return
        all_values = {**self._known, **values}
        tensors = [all_values[name] if name else None for name in node.input]
        call = self._call(node.op_type, attributes, tensors)
        fixed = [(self._known.get(name, None)) for name in node.input]
        open_ = [place for place, name in enumerate(node.input) if name and name not in self._known]

        def bound(*given: Tensor) -> Any:
            own = list(fixed)
            for place, each in zip(open_, given, strict=True):
                own[place] = each
            return call(*own)

        result = bound(*(tensors[place] for place in open_))
        made = [name for name in node.output if name]
        results = [result] if len(made) == 1 else list(result)
        if not open_ or node.op_type == "Shape":
            self._known.update(zip(made, results, strict=True))
            return
        values.update(zip(made, results, strict=True))
        self._steps.append((bound, [node.input[place] for place in open_], made))

    def _call(self, kind: str, has: dict[str, Any], given: list[Any]) -> Call:
        """What takes all of the node's inputs."""
        if kind in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min") or kind in _SIMPLE:
            return _SIMPLE[kind]
        if kind in ("Conv", "ConvTranspose"):
            return self._convolution(kind, has, given)
        if kind in _REDUCTIONS:
            axes = has.get("axes") or (
                _ints(given[1]) if len(given) > 1 and given[1] is not None else range(given[0].dim())
            )
            keep = bool(has.get("keepdims", 1))
            return lambda x, *_: _REDUCTIONS[kind](x, tuple(axes), keep)
        if kind == "Clip":
            low = has.get("min", given[1].item() if len(given) > 1 and given[1] is not None else None)
            high = has.get("max", given[2].item() if len(given) > 2 and given[2] is not None else None)
            return lambda x, *_: torch.clamp(x, low, high)
        if kind == "HardSigmoid":
            alpha, beta = has.get("alpha", 0.2), has.get("beta", 0.5)
            if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
                exact: Call = functional.hardsigmoid
                return exact
            return lambda x: torch.clamp(x * alpha + beta, 0, 1)
        if kind == "Softmax":
            return lambda x: torch.softmax(x, has.get("axis", -1 if self._opset >= 13 else 1))
        if kind == "LayerNormalization":
            axis, epsilon = has.get("axis", -1), has.get("epsilon", 1e-5)
            sizes = list(given[0].shape[axis:])
            return lambda x, scale, bias=None: functional.layer_norm(x, sizes, scale, bias, epsilon)
        if kind == "BatchNormalization":
            epsilon = has.get("epsilon", 1e-5)
            return lambda x, scale, bias, mean, variance: functional.batch_norm(
                x, mean, variance, scale, bias, eps=epsilon
            )
        if kind == "Gemm":
            alpha, beta = has.get("alpha", 1.0), has.get("beta", 1.0)
            turned = [bool(has.get("transA")), bool(has.get("transB"))]

            def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
                a, b = (each.T if turn else each for each, turn in zip((a, b), turned, strict=True))
                return a @ b * alpha if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)

            return gemm
        if kind == "Reshape":
            stated = _ints(given[1])
            sizes = [given[0].shape[at] if size == 0 else size for at, size in enumerate(stated)]
            return lambda x, _: x.reshape(sizes)
        if kind == "Flatten":
            return lambda x: x.flatten(has.get("axis", 1))
        if kind == "Transpose":
            return lambda x: x.permute(has["perm"])
        if kind in ("Unsqueeze", "Squeeze"):
            axes = has.get("axes") or (
                _ints(given[1]) if len(given) > 1 else [a for a, n in enumerate(given[0].shape) if n == 1]
            )
            if kind == "Squeeze":
                return lambda x, *_: x.squeeze(tuple(axes))
            rank = given[0].dim() + len(axes)
            places = sorted(axis % rank for axis in axes)

            def unsqueeze(x: Tensor, *_: Any) -> Tensor:
                for axis in places:
                    x = x.unsqueeze(axis)
                return x

            return unsqueeze
        if kind == "Concat":
            return lambda *x: torch.cat(x, has["axis"])
        if kind == "Slice":
            starts, ends = (has[name] if name in has else _ints(given[at]) for name, at in (("starts", 1), ("ends", 2)))
            axes = has.get("axes") or (
                _ints(given[3]) if len(given) > 3 and given[3] is not None else range(len(starts))
            )
            steps = _ints(given[4]) if len(given) > 4 else [1] * len(list(starts))
            assert all(step > 0 for step in steps)
            parts = [slice(None)] * given[0].dim()
            for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
                parts[axis] = slice(start, min(end, 1 << 60), step)
            return lambda x, *_: x[tuple(parts)]
        if kind == "Gather":
            axis = has.get("axis", 0)
            if given[1].dim() == 0:
                number = int(given[1])
                return lambda x, _: x.select(axis, number)
            return lambda x, index: x.index_select(axis, index.reshape(-1)).reshape(
                *x.shape[:axis], *index.shape, *x.shape[axis:][1:]
            )
        if kind == "GatherND":
            return lambda x, index: x[tuple(index.unbind(-1))]
        if kind == "Shape":
            return lambda x: torch.tensor(x.shape, device=self.device)
        if kind == "Expand":
            sizes = torch.broadcast_shapes(given[0].shape, _ints(given[1]))
            return lambda x, _: x.expand(sizes)
        if kind == "ConstantOfShape":
            value = numpy_helper.to_array(has["value"]) if "value" in has else np.zeros(1, np.float32)
            return lambda sizes: torch.full(
                _ints(sizes), value[0].item(), dtype=torch.from_numpy(value.copy()).dtype, device=self.device
            )
        if kind == "Range":
            return lambda a, b, c: torch.arange(a.item(), b.item(), c.item(), device=self.device)
        if kind == "Cast":
            dtype = torch.from_numpy(np.zeros(1, helper.tensor_dtype_to_np_dtype(has["to"]))).dtype
            return lambda x: x.to(dtype)
        if kind == "Pad":
            pads = _pads(has["pads"] if "pads" in has else _ints(given[1]))
            mode = has.get("mode", b"constant").decode()
            value = given[2].item() if len(given) > 2 and given[2] is not None else has.get("value", 0.0)
            if mode == "constant":
                return lambda x, *_: functional.pad(x, pads, value=value)
            picked = [
                (axis, torch.from_numpy(np.pad(np.arange(size), around, mode)).to(self.device))
                for axis, (size, around) in enumerate(
                    zip(given[0].shape, [*zip(pads[::2], pads[1::2], strict=True)][::-1], strict=True)
                )
                if any(around)
            ]

            def reflect(x: Tensor, *_: Any) -> Tensor:
                for axis, index in picked:
                    x = x.index_select(axis, index)
                return x

            return reflect
        if kind in ("MaxPool", "AveragePool"):
            return self._pooling(kind, has, given)
        if kind in ("Resize", "Upsample"):
            return self._resize(has, given)
        if kind == "LSTM":
            return self._lstm(has, given)
        raise NotImplementedError(kind)

    @staticmethod
    def _convolution(kind: str, has: dict[str, Any], given: list[Any]) -> Call:
        rank = given[0].dim() - 2
        strides, dilations = has.get("strides", [1] * rank), has.get("dilations", [1] * rank)
        pads, groups = list(has.get("pads", [0] * 2 * rank)), has.get("group", 1)
        if kind == "ConvTranspose":
            run = (functional.conv_transpose1d, functional.conv_transpose2d)[rank - 1]
            assert pads[:rank] == pads[rank:]
            extra = has.get("output_padding", [0] * rank)
            return lambda x, w, b=None: run(x, w, b, strides, pads[:rank], extra, groups, dilations)
        pads = _auto_pads(has, given[0].shape[2:], given[1].shape[2:], pads)
        run = (functional.conv1d, functional.conv2d)[rank - 1]
        if pads[:rank] == pads[rank:]:
            return lambda x, w, b=None: run(x, w, b, strides, pads[:rank], dilations, groups)
        around = _pads(pads)
        return lambda x, w, b=None: run(functional.pad(x, around), w, b, strides, 0, dilations, groups)

    @staticmethod
    def _pooling(kind: str, has: dict[str, Any], given: list[Any]) -> Call:
        window = has["kernel_shape"]
        rank = len(window)
        strides = has.get("strides", [1] * rank)
        pads = _auto_pads(has, given[0].shape[2:], window, has.get("pads", [0] * 2 * rank))
        run = {1: (functional.max_pool1d, functional.avg_pool1d), 2: (functional.max_pool2d, functional.avg_pool2d)}[
            rank
        ]
        up = bool(has.get("ceil_mode"))
        if kind == "MaxPool":
            if pads[:rank] == pads[rank:]:
                return lambda x: run[0](x, window, strides, pads[:rank], ceil_mode=up)
            around = _pads(pads)
            return lambda x: run[0](functional.pad(x, around, value=-float("inf")), window, strides, ceil_mode=up)
        counted = bool(has.get("count_include_pad"))
        return lambda x: run[1](x, window, strides, pads[:rank], ceil_mode=up, count_include_pad=counted)

    @staticmethod
    def _resize(has: dict[str, Any], given: list[Any]) -> Call:
        mode = has.get("mode", b"nearest").decode()
        if len(given) > 3 and given[3] is not None:
            sizes = _ints(given[3])[2:]
        else:
            scales = given[2 if len(given) > 2 else 1].tolist()
            sizes = [int(size * scale) for size, scale in zip(given[0].shape[2:], scales[2:], strict=True)]
        if mode == "nearest":
            return lambda x, *_: functional.interpolate(x, sizes)
        aligned = has.get("coordinate_transformation_mode", b"") == b"align_corners"
        return lambda x, *_: functional.interpolate(x, sizes, mode="bilinear", align_corners=aligned)

    def _lstm(self, has: dict[str, Any], given: list[Any]) -> Call:
        hidden = has["hidden_size"]
        weights, recurrence, bias = given[1][0], given[2][0], given[3][0]

        def torch_order(x: Tensor) -> Tensor:
            i, o, f, c = x.split(hidden)
            return torch.cat([i, f, c, o]).contiguous()

        own = torch.nn.LSTM(weights.shape[1], hidden).to(self.device)
        with torch.no_grad():
            for name, value in (
                ("weight_ih_l0", weights), ("weight_hh_l0", recurrence),
                ("bias_ih_l0", bias[: 4 * hidden]), ("bias_hh_l0", bias[4 * hidden :]),
            ):  # fmt: skip
                getattr(own, name).copy_(torch_order(value))

        def lstm(x: Tensor, _w: Tensor, _r: Tensor, _b: Tensor, _l: Any = None, h: Any = None, c: Any = None) -> Any:
            if h is None:
                made, (last, cell) = own(x)
            else:
                made, (last, cell) = own(x, (h, c))
            return made[:, None], last, cell

        return lstm
