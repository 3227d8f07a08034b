"""DFT and STFT: products with matrices of cosines and sines; and what frequencies weigh in bands."""

from dataclasses import replace

import numpy as np

from app.memory.arrays import numpy_type
from app.models.onnx.builder import Array
from app.models.onnx.casts import type_of
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, maps
from app.models.onnx.movement import window
from app.models.onnx.operands import FLOATS
from app.models.onnx.shapes import axis_of, integers
from app.models.onnx.tensors import Unsupported, View

_MOST_WEIGHTS = 1 << 24
"""Elements of a matrix, which is made while the graph is built."""


def _one(node: Node, index: int, what: str) -> int:
    """An input that is one number, of at least 1."""
    found = integers(node, index, what)
    if len(found) != 1 or found[0] < 1:
        raise Unsupported(f"its {what} is {found}")
    return found[0]


def _angles(length: int, rows: int, columns: int) -> Array:
    """How far round the circle each product of places is, of which `length` go round it once. Raises Unsupported."""
    if 4 * rows * columns > _MOST_WEIGHTS:
        raise Unsupported(f"it needs {4 * rows * columns} weights, more than {_MOST_WEIGHTS}")
    products = np.arange(rows)[:, np.newaxis] * np.arange(columns)
    made: Array = 2 * np.pi / length * (products % length)
    return made


def _weights(length: int, rows: int, columns: int, *, inverse: bool) -> Array:
    """{ rows, real and imaginary, columns, real and imaginary }: what elements become as frequencies, or back."""
    angles = _angles(length, rows, columns)
    cosines, sines = np.cos(angles), np.sin(angles) * (-1 if inverse else 1)
    made = np.stack([np.stack([cosines, -sines], -1), np.stack([sines, cosines], -1)], 1)
    return made / length if inverse else made


def _real_weights(length: int, rows: int, columns: int) -> Array:
    """{ rows, real and imaginary, columns, 1 }: what half of the frequencies make of real elements. Those of the other
    half are their conjugates, but for the first one, and the last one of an even `length`, which are there once."""
    times = np.full((rows, 1), 2.0)
    times[0] = 1
    if length % 2 == 0 and rows > length // 2:
        times[length // 2] = 1
    angles = _angles(length, rows, columns)
    return np.stack([times * np.cos(angles), -times * np.sin(angles)], 1)[..., np.newaxis] / length


def _product(node: Node, rows: View, weights: Array, parts: int) -> View:
    """Of `rows`, whose elements have so many `parts`, real ones one."""
    used = weights[:, :parts]
    matrix = used.reshape(used.shape[0] * parts, -1).astype(numpy_type(rows.data_type))
    return matmul(node, rows, node.build.constant(matrix))


def _parts(x: View) -> int:
    """Whether the elements of a signal have one part or two. Raises Unsupported."""
    if len(x.sizes) < 2 or x.sizes[-1] not in (1, 2):
        raise Unsupported(f"its signal has sizes {list(x.sizes)}, whose last one is neither 1 nor 2")
    if x.data_type not in FLOATS:
        raise Unsupported(f"DirectML does not compute it in {x.data_type}")
    return x.sizes[-1]


@maps("DFT")
def dft(node: Node) -> View:
    x = node.view(0)
    parts = _parts(x)
    rank = len(x.sizes)
    stated = integers(node, 2, "axis")[0] if node.has(2) else int(node.attribute("axis", -2))
    axis = axis_of(stated, rank)
    if axis == rank - 1:
        raise Unsupported(f"its axis is {stated}, along which real and imaginary parts are")
    inverse, half = bool(node.attribute("inverse")), bool(node.attribute("onesided"))
    size = x.sizes[axis]
    length = 2 * (size - 1) if inverse and half else size
    length = _one(node, 1, "dft_length") if node.has(1) else length
    if length < 1:
        raise Unsupported(f"its dft_length is {length}")
    shortened = length // 2 + 1
    used = min(size, shortened if inverse and half else length)
    if inverse and half:
        weights = _real_weights(length, used, length)
    else:
        weights = _weights(length, used, shortened if half else length, inverse=inverse)
    part = window(node, x, [range(used if k == axis else each) for k, each in enumerate(x.sizes)])
    assert isinstance(part, View), "there are elements"
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    turned = part.transposed(order)
    rows = node.reshaped(turned, (*turned.sizes[:-2], used * parts))
    made = _product(node, rows, weights, parts)
    back = [order.index(k) for k in range(rank)]
    return node.reshaped(made, (*turned.sizes[:-2], *weights.shape[2:])).transposed(back)


@maps("STFT")
def stft(node: Node) -> View:
    """Frames are read where they are in the signal, and what the window weighs is in the matrix if it is known.

    A signal without a dimension for parts is real: so PyTorch exports it, and onnxruntime takes it.
    """
    x = node.view(0)
    x = node.reshaped(x, (*x.sizes, 1)) if len(x.sizes) == 2 else x
    parts = _parts(x)
    if len(x.sizes) != 3:
        raise Unsupported(f"its signal has {len(x.sizes)} dimensions, not 3")
    batch, size, _ = x.sizes
    step = _one(node, 1, "frame_step")
    given = node.optional(2)
    length = given.elements if given is not None else size
    length = _one(node, 3, "frame_length") if node.has(3) else length
    if length > size or (given is not None and given.sizes != (length,)):
        raise Unsupported(
            f"its frame_length is {length}, of a signal of {size} and a window of {given and given.sizes}"
        )
    weights = _weights(length, length, length // 2 + 1 if node.attribute("onesided") else length, inverse=False)
    count = (size - length) // step + 1
    lying = node.packed(x)
    frames = replace(lying, sizes=(batch, count, length * parts), strides=(size * parts, step * parts, 1))
    known = node.inputs[2] if given is not None else None
    if isinstance(known, np.ndarray):
        weights = weights * known.astype(np.float64).reshape(-1, 1, 1, 1)
    elif given is not None:
        raise Unsupported("its window is not constant")
    made = _product(node, frames, weights, parts)
    return node.reshaped(made, (batch, count, *weights.shape[2:]))


@maps("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> Array:
    """What each frequency weighs in each band: from 0 at its lower edge to 1 at its centre and back."""
    count, length = _one(node, 0, "num_mel_bins"), _one(node, 1, "dft_length")
    rate = _one(node, 2, "sample_rate")
    low, high = (float(node.array(index, "edge").reshape(())) for index in (3, 4))
    frequencies = length // 2 + 1
    if count * frequencies > _MOST_WEIGHTS:
        raise Unsupported(f"it makes {count * frequencies} weights, more than {_MOST_WEIGHTS}")
    if not 0 <= low <= high < np.inf:
        raise Unsupported(f"its edges are {low} and {high}")
    low_mel, high_mel = (2595 * np.log10(1 + each / 700) for each in (low, high))
    mels = np.arange(count + 2) * ((high_mel - low_mel) / (count + 2)) + low_mel
    places = ((length + 1) * (700 * (np.power(10, mels / 2595) - 1)) // rate).astype(np.int64)
    if places[-1] > frequencies:
        raise Unsupported(f"its upper edge is {high}, beyond what {frequencies} frequencies of {rate} reach")
    lower, centre, upper = places[:-2], places[1:-1], places[2:]
    here = np.arange(frequencies)[:, np.newaxis]
    rising = np.where(centre > lower, (here - lower) / np.maximum(centre - lower, 1), 1)
    falling = (upper - here) / np.maximum(upper - centre, 1)
    made = np.where((here >= lower) & (here <= centre), rising, 0)
    made = np.where((here >= centre) & (here < upper), falling, made)
    data_type = type_of(int(node.attribute("output_datatype")))
    weights: Array = made.astype(numpy_type(data_type))
    return weights
