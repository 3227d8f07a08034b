"""Models whose rows are proven to be apart, and models that mix them, however little other data show it."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from app.models.onnx.reading import signature
from app.models.repository.model import LoadedModel
from tests.models.documents import Array, model
from tests.models.onnx_runs import never, run, service

ROWS = 4

RANDOM = np.random.default_rng(0)


def f(*sizes: int) -> Array:
    return RANDOM.normal(size=sizes).astype(np.float32)


def i(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def rows(text: str, **initializers: Any) -> ModelProto:
    return model(f"m {text}", **initializers)


def quantized(text: str, **initializers: Any) -> ModelProto:
    """With an operator of onnxruntime's own."""
    made = rows(text, **initializers)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


APART = {
    "layers": rows(
        "(float[b,8] x) => (float[b,4] y) { h = MatMul(x, w) g = Add(h, c) y = Relu(g) }",
        w=f(8, 4),
        c=f(4),
    ),
    "layer with a bias": rows(
        "(float[b,8] x) => (float[b,4] y) { y = Gemm<transB=1>(x, w, c) }",
        w=f(4, 8),
        c=f(4),
    ),
    "convolutions": rows(
        "(float[b,3,8,8] x) => (float[b,5] y) { a = Conv<pads=[1,1,1,1]>(x, w) n = "
        "BatchNormalization(a,s,s,s,s) p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(n) g = "
        "GlobalAveragePool(p) fl = Flatten(g) z = Softmax(fl) y = Identity(z) }",
        w=f(5, 3, 3, 3),
        s=np.ones(5, np.float32),
    ),
    "normalization of rows": rows(
        "(float[b,6,8] x) => (float[b,6,8] y) { y = LayerNormalization(x, s, s) }",
        s=f(8),
    ),
    "attention": rows(
        "(int64[b,6] ids) => (float[b,6,8] y) { e = Gather(t, ids) p = Add(e, pos) q = MatMul(p, w) "
        "qr = Reshape(q, sh) qt = Transpose<perm=[0,2,1,3]>(qr) kt = Transpose<perm=[0,2,3,1]>(qr) s "
        "= MatMul(qt, kt) a = Softmax(s) o = MatMul(a, qt) ot = Transpose<perm=[0,2,1,3]>(o) z = "
        "Reshape(ot, sh2) y = Add(z, p) }",
        t=f(10, 8),
        pos=f(6, 8),
        w=f(8, 8),
        sh=i(0, 0, 2, 4),
        sh2=i(0, 0, 8),
    ),
    "rows of several each, again and again": rows(
        "(float[b,2,6,8] x) => (float[b,2,6,4] y) { t = Transpose<perm=[1,0,2,3]>(x) r = Reshape(t, sh) "
        "m = MatMul(r, w) u = Reshape(m, s2) y = Transpose<perm=[1,0,2,3]>(u) }",
        w=f(8, 4),
        sh=i(-1, 8),
        s2=i(2, -1, 6, 4),
    ),
    "rows of several each": rows(
        "(float[b,6,8] x) => (float[b,6,4] y) { r = Reshape(x, sh) g = Gemm(r, w, c) a = Relu(g) y = Reshape(a, s2) }",
        w=f(8, 4),
        c=f(4),
        sh=i(-1, 8),
        s2=i(-1, 6, 4),
    ),
    "normalization of rows of several each": rows(
        "(float[b,6,8] x) => (float[b,6,8] y) { r = Reshape(x, sh) g = LayerNormalization(r, s, s) y "
        "= Reshape(g, s2) }",
        s=f(8),
        sh=i(-1, 8),
        s2=i(-1, 6, 8),
    ),
    "heads as batches": rows(
        "(float[b,6,8] x) => (float[b,6,8] y) { r = Reshape(x, sh) t = Transpose<perm=[0,2,1,3]>(r) h "
        "= Reshape(t, s1) ht = Transpose<perm=[0,2,1]>(h) s = MatMul(h, ht) a = Softmax(s) o = "
        "MatMul(a, h) oo = Reshape(o, s2) ot = Transpose<perm=[0,2,1,3]>(oo) y = Reshape(ot, s3) }",
        sh=i(0, 6, 2, 4),
        s1=i(-1, 6, 4),
        s2=i(-1, 2, 6, 4),
        s3=i(-1, 6, 8),
    ),
    "LSTM": rows(
        "(float[b,6,8] x) => (float[b,6,5] y) { t = Transpose<perm=[1,0,2]>(x) o, h, c = "
        "LSTM<hidden_size=5>(t, w, r, bb) s = Squeeze(o, ax) y = Transpose<perm=[1,0,2]>(s) }",
        w=f(1, 20, 8),
        r=f(1, 20, 5),
        bb=f(1, 40),
        ax=i(1),
    ),
    "GRU both ways": rows(
        "(float[b,6,8] x) => (float[b,5] y) { t = Transpose<perm=[1,0,2]>(x) o, h = "
        'GRU<hidden_size=5,direction="bidirectional">(t, w, r, bb) y = ReduceSum<keepdims=0>(h, ax) }',
        w=f(2, 15, 8),
        r=f(2, 15, 5),
        bb=f(2, 30),
        ax=i(0),
    ),
    "token before all rows": rows(
        "(float[b,6,8] x) => (float[b,8] y) { s = Shape(x) b0 = Gather(s, z) b1 = Unsqueeze(b0, zz) "
        "es = Concat<axis=0>(b1, one, e) c = Expand(cls, es) j = Concat<axis=1>(c, x) a = "
        "ReduceMean<axes=[1],keepdims=0>(j) y = Identity(a) }",
        z=np.array(0),
        zz=i(0),
        one=i(1),
        e=i(8),
        cls=f(1, 1, 8),
    ),
    "largest of a row": rows(
        "(float[b,8] x) => (float[b,2] y, int64[b,2] k) { y, k = TopK(x, kk) }",
        kk=i(2),
    ),
    "largest of a row by place": rows(
        "(float[b,8] x) => (int64[b] y) { y = ArgMax<axis=1,keepdims=0>(x) }",
    ),
    "linear resize": rows(
        '(float[b,3,4,4] x) => (float[b,3,8,8] y) { y = Resize<mode="linear">(x, n, s) }',
        n=f(0),
        s=np.array([1, 1, 2, 2], np.float32),
    ),
    "nearest resize": rows(
        "(float[b,3,4,4] x) => (float[b,3,8,8] y) { y = "
        'Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(x, '
        "n, s) }",
        n=f(0),
        s=np.array([1, 1, 2, 2], np.float32),
    ),
    "cubic resize": rows(
        '(float[b,3,4,4] x) => (float[b,3,8,8] y) { y = Resize<mode="cubic">(x, n, s) }',
        n=f(0),
        s=np.array([1, 1, 2, 2], np.float32),
    ),
    "zeros around": rows(
        "(float[b,3,4,4] x) => (float[b,3,4,6] y) { y = Pad(x, p) }",
        p=i(0, 0, 0, 1, 0, 0, 0, 1),
    ),
    "mirrors around": rows(
        '(float[b,3,4,4] x) => (float[b,3,4,6] y) { y = Pad<mode="reflect">(x, p) }',
        p=i(0, 0, 0, 1, 0, 0, 0, 1),
    ),
    "edges around": rows(
        '(float[b,3,4,4] x) => (float[b,3,4,6] y) { y = Pad<mode="edge">(x, p) }',
        p=i(0, 0, 0, 1, 0, 0, 0, 1),
    ),
    "part of a row": rows(
        "(float[b,8] x) => (float[b,3] y) { y = Slice(x, s, e, a) }",
        s=i(1),
        e=i(4),
        a=i(1),
    ),
    "row backwards": rows(
        "(float[b,8] x) => (float[b,8] y) { y = Slice(x, s, e, a, st) }",
        s=i(-1),
        e=i(-100),
        a=i(1),
        st=i(-1),
    ),
    "halves of a row": rows(
        "(float[b,8] x) => (float[b,4] y) { a, c = Split<axis=1>(x) y = Mul(a, c) }",
    ),
    "normalization of channels": rows(
        "(float[b,3,4,4] x) => (float[b,3,4,4] y) { y = InstanceNormalization(x, s, s) }",
        s=f(3),
    ),
    "sums along a row": rows(
        "(float[b,8] x) => (float[b,8] y) { y = CumSum(x, a) }",
        a=np.array(1),
    ),
    "depth to space": rows(
        "(float[b,4,3,3] x) => (float[b,1,6,6] y) { y = DepthToSpace<blocksize=2>(x) }",
    ),
    "chosen elements": rows(
        "(float[b,8] x, int64[b,2] k) => (float[b,2] y) { y = GatherElements<axis=1>(x, k) }",
    ),
    "chosen by tuples": rows(
        "(float[b,8] x, int64[b,2,1] k) => (float[b,2] y) { y = GatherND<batch_dims=1>(x, k) }",
    ),
    "chosen by tuples of places and the row's own number": rows(
        "(float[b,8] x) => (float[b,3] y) { n = Shape<end=1>(x) n0 = Squeeze(n) r = Range(zero, n0, one) "
        "u = Unsqueeze(r, a) z = Mul(k, nothing) own = Add(u, z) kk = Add(z2, k) s = Shape(own) e = Expand(kk, s) "
        "o3 = Unsqueeze(own, b2) e3 = Unsqueeze(e, b2) t = Concat<axis=2>(o3, e3) y = GatherND(x, t) }",
        zero=np.array(0),
        one=np.array(1),
        a=i(1),
        b2=i(2),
        k=i(0, 5, 2),
        nothing=i(0),
        z2=i(0),
    ),
    "scattered in a row": rows(
        "(float[b,8] x, int64[b,2] k, float[b,2] u) => (float[b,8] y) { y = ScatterElements<axis=1>(x, k, u) }",
    ),
    "choice by row": rows(
        "(float[b,8] x, bool[b,1] k) => (float[b,8] y) { n = Neg(x) y = Where(k, x, n) }",
    ),
    "einsum": rows(
        '(float[b,6,8] x) => (float[b,6,6] y) { y = Einsum<equation="bij,bkj->bik">(x, x) }',
    ),
    "quantized and back": rows(
        "(float[b,8] x) => (float[b,4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        "y = MatMul(d, w) }",
        s=np.float32(0.1),
        z=np.uint8(3),
        w=f(8, 4),
    ),
    "quantized product": rows(
        "(uint8[b,8] x) => (uint8[b,4] y) { y = QLinearMatMul(x, s, z, w, s, z, s, z) }",
        s=np.float32(0.1),
        z=np.uint8(3),
        w=np.ones((8, 4), np.uint8),
    ),
    "integer product": rows(
        "(uint8[b,8] x) => (int32[b,4] y) { y = MatMulInteger(x, w, z, z) }",
        z=np.uint8(3),
        w=np.ones((8, 4), np.uint8),
    ),
    "quantized convolution": rows(
        "(uint8[b,3,4,4] x) => (uint8[b,2,2,2] y) { y = QLinearConv(x, s, z, w, s, z, s, z) }",
        s=np.float32(0.1),
        z=np.uint8(3),
        w=np.ones((2, 3, 3, 3), np.uint8),
    ),
    "transposed convolution": rows(
        "(float[b,3,4,4] x) => (float[b,5,6,6] y) { y = ConvTranspose(x, w) }",
        w=f(3, 5, 3, 3),
    ),
    "means of windows": rows(
        "(float[b,3,4,4] x) => (float[b,3,3,3] y) { y = AveragePool<kernel_shape=[2,2],count_include_pad=1>(x) }",
    ),
    "local response": rows(
        "(float[b,3,4,4] x) => (float[b,3,4,4] y) { y = LRN<size=3>(x) }",
    ),
    "rows repeated": rows(
        "(float[b,3] x) => (float[b,9] y) { y = Tile(x, r) }",
        r=i(1, 3),
    ),
    "ones among zeros": rows(
        "(int64[b,3] x) => (float[b,3,5] y) { y = OneHot(x, d, v) }",
        d=i(5),
        v=np.array([0, 1], np.float32),
    ),
    "normalization of groups": rows(
        "(float[b,4,3,3] x) => (float[b,4,3,3] y) { r = Reshape(x, sh) n = InstanceNormalization(r, "
        "s, s) t = Shape(x) y = Reshape(n, t) }",
        s=f(2),
        sh=i(0, 2, -1),
    ),
    "attention in windows": rows(
        "(float[b,4,4,3] x) => (float[b,4,4,3] y) { r = Reshape(x, sh) t = "
        "Transpose<perm=[0,1,3,2,4,5]>(r) w = Reshape(t, s1) q = MatMul(w, ww) a = Softmax(q) o = "
        "Reshape(a, s2) ot = Transpose<perm=[0,1,3,2,4,5]>(o) y = Reshape(ot, s3) }",
        ww=f(3, 3),
        sh=i(0, 2, 2, 2, 2, 3),
        s1=i(-1, 4, 3),
        s2=i(-1, 2, 2, 2, 2, 3),
        s3=i(-1, 4, 4, 3),
    ),
    "mask by row": rows(
        "(float[b,6,6] x, int64[b,6] k) => (float[b,6,6] y) { u = Unsqueeze(k, ax) c = Cast<to=1>(u) "
        "o = Sub(one, c) m = Mul(o, big) z = Add(x, m) y = Softmax(z) }",
        ax=i(1),
        one=np.float32(1),
        big=np.float32(-1000000000.0),
    ),
    "reversed to a length": rows(
        "(float[b,6,3] x, int64[b] k) => (float[b,6,3] y) { y = ReverseSequence<batch_axis=0,time_axis=1>(x, k) }",
    ),
    "samples of a grid": rows(
        "(float[b,1,4,4] x, float[b,3,3,2] k) => (float[b,1,3,3] y) { y = GridSample(x, k) }",
    ),
    "global maxima": rows(
        "(float[b,3,4,4] x) => (float[b,3] y) { a = GlobalMaxPool(x) y = Squeeze(a, ax) }",
        ax=i(2, 3),
    ),
    "first of a row": rows(
        "(float[b,6,8] x) => (float[b,8] y) { y = Gather<axis=1>(x, z) }",
        z=np.array(0),
    ),
    "last of a row": rows(
        "(float[b,6,8] x) => (float[b,8] y) { y = Gather<axis=1>(x, z) }",
        z=np.array(-1),
    ),
    "length of a row": rows(
        "(float[b,8] x) => (float[b,8] y) { n = ReduceL2<axes=[1]>(x) y = Div(x, n) }",
    ),
    "normalization by length": rows(
        "(float[b,8] x) => (float[b,8] y) { y = LpNormalization<axis=1>(x) }",
    ),
    "LSTM from zeros": rows(
        "(float[b,6,8] x) => (float[b,5] y) { t = Transpose<perm=[1,0,2]>(x) s = Shape(x) b0 = "
        "Gather(s, zz) hs = Concat<axis=0>(one, b0, five) h0 = ConstantOfShape(hs) o, h, c = "
        'LSTM<hidden_size=5>(t, w, r, bb, "", h0, h0) y = Squeeze(h, ax) }',
        w=f(1, 20, 8),
        r=f(1, 20, 5),
        bb=f(1, 40),
        ax=i(0),
        zz=i(0),
        one=i(1),
        five=i(5),
    ),
    "number for each row": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape<end=1>(x) o = ConstantOfShape<value=int64[1]{1}>(s) "
        "m = Mul(o, k) f = Cast<to=1>(m) u = Unsqueeze(f, ax) y = Add(x, u) }",
        k=i(2),
        ax=i(1),
    ),
}

MIXED = {
    "one output of two": rows(
        "(float[b,4] x) => (float[b,4] y, float[b,4] z) { y = Relu(x) z = Softmax<axis=0>(x) }",
    ),
    "choice by a total": rows(
        "(float[b,8] x) => (float[b,8] y) { s = ReduceSum<keepdims=0>(x) c = Greater(s, k) n = Neg(x) "
        "y = Where(c, x, n) }",
        k=np.float32(1000000.0),
    ),
    "sorted along the batch": rows(
        "(float[b,8] x) => (float[b,8] y) { y, k = TopK<axis=0>(x, n) }",
        n=i(4),
    ),
    "bound that is a maximum": rows(
        '(float[b,8] x) => (float[b,8] y) { s = ReduceMax<keepdims=0>(x) y = Clip(x, "", s) }',
    ),
    "maximum times zero": rows(
        "(float[b,8] x) => (float[b,8] y) { s = ReduceMax<keepdims=0>(x) z = Mul(s, k) y = Add(x, z) }",
        k=np.float32(0),
    ),
    "softmax along the batch": rows(
        "(float[b,8] x) => (float[b,8] y) { y = Softmax<axis=0>(x) }",
    ),
    "sums along the batch": rows(
        "(float[b,8] x) => (float[b,8] y) { y = CumSum(x, a) }",
        a=np.array(0),
    ),
    "windows along the batch": rows(
        "(float[b,1,8] x) => (float[b,1,8] y) { t = Transpose<perm=[2,1,0]>(x) p = "
        "MaxPool<kernel_shape=[3],pads=[1,1]>(t) y = Transpose<perm=[2,1,0]>(p) }",
    ),
    "scattered along the batch": rows(
        "(float[b,8] x, int64[b,8] k) => (float[b,8] y) { y = ScatterElements<axis=0>(x, k, x) }",
    ),
    "rows that others choose": rows(
        "(float[b,8] x, int64[b] k) => (float[b,8] y) { y = Gather(x, k) }",
    ),
    "elements of rows that others choose": rows(
        "(float[b,8] x, int64[b,8] k) => (float[b,8] y) { y = GatherElements<axis=0>(x, k) }",
    ),
    "tuples along the batch": rows(
        "(float[b,8] x, int64[b,1] k) => (float[b,8] y) { y = GatherND(x, k) }",
    ),
    "rows that others write": rows(
        "(float[b,8] x, int64[b,1] k) => (float[b,8] y) { y = ScatterND(x, k, x) }",
    ),
    "batch backwards": rows(
        "(float[b,8] x) => (float[b,8] y) { y = Slice(x, s, e, a, st) }",
        s=i(-1),
        e=i(-100),
        a=i(0),
        st=i(-1),
    ),
    "products of rows with rows": rows(
        "(float[b,8] x) => (float[b,8] y) { t = Transpose(x) g = MatMul(x, t) y = MatMul(g, x) }",
    ),
    "dynamic quantization": rows(
        "(float[b,8] x) => (uint8[b,8] y) { y, s, z = DynamicQuantizeLinear(x) }",
    ),
    "LSTM of quantized weights": quantized(
        "(float[b,6,8] x) => (float[b,5] y) { t = Transpose<perm=[1,0,2]>(x) "
        'o, h, c = com.microsoft.DynamicQuantizeLSTM<hidden_size=5>(t, w, r, "", "", "", "", "", s, z, s, z) '
        "y = Squeeze(h, ax) }",
        w=RANDOM.integers(0, 255, (1, 8, 20)).astype(np.uint8),
        r=RANDOM.integers(0, 255, (1, 5, 20)).astype(np.uint8),
        s=np.full(1, 0.01, np.float32),
        z=np.full(1, 128, np.uint8),
        ax=i(0),
    ),
    "number of the row": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape(x) n = Gather(s, z) r = Range(z, n, o) f = "
        "Cast<to=1>(r) u = Unsqueeze(f, ax) y = Add(x, u) }",
        z=np.array(0),
        o=np.array(1),
        ax=i(1),
    ),
    "diagonal": rows(
        "(float[b,4] x) => (float[b,4] y) { y = EyeLike(x) }",
    ),
    "triangle": rows(
        "(float[b,4] x) => (float[b,4] y) { y = Trilu(x) }",
    ),
    "transpose": rows(
        "(float[b,4] x) => (float[b,4] y) { y = Transpose(x) }",
    ),
    "rows moved": rows(
        "(float[b,4] x) => (float[b,4] y) { p = Pad(x, pp) y = Slice(p, s, e, a) }",
        pp=i(1, 0, 0, 0),
        s=i(0),
        e=i(-1),
        a=i(0),
    ),
    "rows turned": rows(
        "(float[b,4] x) => (float[b,4] y) { h = Slice(x, s, e, a) t = Slice(x, z, s, a) y = Concat<axis=0>(h, t) }",
        s=i(1),
        e=i(100),
        a=i(0),
        z=i(0),
    ),
    "mean of the batch": rows(
        "(float[b,8] x) => (float[b,8] y) { m = ReduceMean<axes=[0]>(x) y = Sub(x, m) }",
    ),
    "number of rows": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape(x) n = Gather(s, z) c = Cast<to=1>(n) y = Div(x, c) }",
        z=np.array(0),
    ),
    "number of rows for each row": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape<end=1>(x) o = ConstantOfShape<value=int64[1]{1}>(s) "
        "m = Mul(o, s) f = Cast<to=1>(m) u = Unsqueeze(f, ax) y = Add(x, u) }",
        ax=i(1),
    ),
    "number of rows that says which operator": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape<end=1>(x) c = Equal(s, k) y = "
        "If<then_branch = a () => (float[b,8] u) { u = Neg(x) },else_branch = e () => (float[b,8] v) "
        "{ v = Abs(x) }>(c) }",
        k=i(ROWS),
    ),
    "number of rows that says how many dimensions": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape<end=1>(x) c = Equal(s, k) y = "
        "If<then_branch = a () => (float[b,8] u) { r = Reshape(x, s3) n = Neg(r) u = Reshape(n, s2) },"
        "else_branch = e () => (float[b,8] v) { v = Neg(x) }>(c) }",
        k=i(ROWS),
        s3=i(-1, 2, 4),
        s2=i(-1, 8),
    ),
    "number of rows as a place": rows(
        "(float[b,8] x) => (float[b,1] y) { s = Shape<end=1>(x) m = Sub(s, one) y = Slice(x, m, s, one) }",
        one=i(1),
    ),
    "as many elements as rows": rows(
        "(float[b,8] x) => (float[b,1] y) { s = Shape<end=1>(x) p = Slice(x, z, s, one) y = ReduceSum(p, one) }",
        one=i(1),
        z=i(0),
    ),
    "number of rows by a sum": rows(
        "(float[b,8] x) => (float[b,8] y) { s = Shape<end=1>(x) o = ConstantOfShape<value=float[1]{1}>(s) "
        "n = ReduceSum<keepdims=0>(o) y = Mul(x, n) }",
    ),
    "computed condition": rows(
        "(float[b,8] x) => (float[b,8] y) { s = ReduceSum<keepdims=0>(x) c = Equal(s, k) y = "
        "If<then_branch = a () => (float[b,8] u) { u = Neg(x) },else_branch = b () => (float[b,8] v) "
        "{ v = Abs(x) }>(c) }",
        k=np.array(-24, np.float32),
    ),
    "batch as time": rows(
        "(float[b,6,8] x) => (float[b,6,5] y) { o, h, c = LSTM<hidden_size=5>(x, w, r, bb) y = Squeeze(o, ax) }",
        w=f(1, 20, 8),
        r=f(1, 20, 5),
        bb=f(1, 40),
        ax=i(1),
    ),
    "normalization of rows and channels": rows(
        "(float[b,4,3] x) => (float[b,4,3] y) { r = Reshape(x, sh) n = InstanceNormalization(r, s, s) "
        "t = Shape(x) y = Reshape(n, t) }",
        s=f(4),
        sh=i(1, 4, -1),
    ),
}


def sizes_of(made: ModelProto, rows: int = ROWS) -> dict[str, tuple[int, ...]]:
    ports = signature(made).inputs
    return {
        name: tuple(each if isinstance(each, int) else rows for each in port.sizes or ())
        for name, port in ports.items()
    }


def are_apart(made: ModelProto, rows: int = ROWS) -> bool:
    with service().memory.open() as memory:
        loaded = LoadedModel("m", "1", made, signature(made), {}, memory)
        sized = loaded.compile(tuple(sizes_of(made, rows).values()), service(), never)
        try:
            return sized.rows_are_apart(service(), never)
        finally:
            sized.close()


@pytest.mark.parametrize("made", APART.values(), ids=APART)
def test_rows_that_are_apart(made: ModelProto) -> None:
    """And so they are if each is run by itself."""
    assert are_apart(made)
    random = np.random.default_rng(1)
    ports = signature(made).inputs
    data = {
        name: (
            random.normal(size=sizes) if ports[name].type.startswith("float") else random.integers(0, 2, sizes)
        ).astype(ports[name].type)
        for name, sizes in sizes_of(made).items()
    }
    together = run(made, data)
    for row in range(ROWS):
        alone = run(made, {name: each[row : row + 1] for name, each in data.items()})
        for name, each in alone.items():
            np.testing.assert_allclose(each, together[name][row : row + 1], 1e-4, 1e-5)


@pytest.mark.parametrize("made", MIXED.values(), ids=MIXED)
def test_rows_that_are_mixed(made: ModelProto) -> None:
    assert not are_apart(made)


def test_two_rows_that_are_mixed() -> None:
    """They are looked at beside another number of them, as all are."""
    assert not are_apart(MIXED["number of rows"], rows=2)


@pytest.mark.parametrize("node", ["Softmax (x)", "LogSoftmax (x)", "ReduceLogSum <axes = [1]> (x)"])
def test_few_rows_are_those_of_many_to_the_last_bit(node: str) -> None:
    """Loops and NumPy, which computes small operators, differ there."""
    made = model(f"m (float[batch,9] x) => (float[batch,k] y) {{ y = {node} }}")
    x = np.random.default_rng(1).uniform(0.1, 4, (300, 9)).astype(np.float32)
    many = served(made, x)
    for rows in (1, 2, 5):
        assert many.startswith(served(made, x[:rows]))


def served(made: ModelProto, x: Array) -> bytes:
    with service().memory.open() as memory:
        sized = LoadedModel("m", "1", made, signature(made), {}, memory).compile((x.shape,), service(), never)
        try:
            prepared = service().prepare_graph(sized.graph, "numpy")
            return bytes(service().execute_here(prepared, {"x": memoryview(x.tobytes())}, memory).outputs["y"])
        finally:
            sized.close()
