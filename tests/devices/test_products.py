"""Products of matrices on the CPU outside of graphs: no thread is the BLAS' own, and ours share what is worth it."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from app.devices.cpu import alone, products
from app.devices.cpu.activations import ActivationLoop
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.products import ProductKernel, product_kernel, product_packing_of
from app.devices.cpu.threads import Threads
from app.devices.device import Cancelled
from app.memory.addresses import LINE, whole_lines
from app.operators import arrays
from app.operators.arrays import matmul, multiplied, pieces_of, product
from app.operators.looks import looking, shared
from tests import subnormal_operands
from tests.operators.arrays import bytes_of, desc_of, run
from tests.operators.calls import compiled
from tests.operators.widths import OTHERS, narrow

RANDOM = np.random.default_rng(28)


class Turns:
    """Implements `Sharing`: remembers how many pieces there were, and does the last one first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.counts: list[int] = []

    def share(self, count: int, work: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        self.counts.append(count)
        for turn in reversed(range(count)):
            work(turn)

    def copied(self, x: Any, target: Any) -> bool:
        return False


def never() -> None:
    """Goes on."""


def gemm(a: Any, b: Any, **members: Any) -> dict[str, Any]:
    members = {"TransA": "NONE", "TransB": "NONE", "Alpha": 1, "Beta": 1} | members
    return {"Type": "DML_OPERATOR_GEMM", "ATensor": desc_of(a), "BTensor": desc_of(b), **members}


def test_a_blas_has_one_thread() -> None:
    """Its threads wait for more in a loop, and take the processors from ours, and from who asks."""
    with threadpool_limits(2, "blas"), ThreadPoolExecutor(1) as helpers:
        NumpyDevice(helpers, 2)
        assert [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"] == [1]


SHARED: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "rows": ((300, 40), (40, 50), 3, 3),
    "columns": ((20, 40), (40, 301), 3, 3),
    "one row": ((1, 64), (64, 4099), 4, 4),
    "one column": ((4099, 64), (64, 1), 4, 4),
    "matrices": ((2, 3, 9, 20), (2, 3, 20, 11), 3, 4),
    "few matrices": ((2, 50, 20), (2, 20, 40), 6, 4),
    "parts of matrices": ((2, 90, 20), (2, 20, 40), 3, 4),
    "a matrix for all": ((4, 33, 20), (1, 20, 40), 2, 2),
    "short sides": ((17, 400), (400, 17), 8, 2),
    "one element": ((1, 400), (400, 1), 8, 1),
}
"""Sizes, how many threads there are, and how many pieces are made for them: of whole vectors, or whole matrices."""


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("is_turned", [False, True])
def test_pieces_are_the_whole(name: str, is_turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out: what is made lies over numbers that are none."""
    monkeypatch.setattr(arrays, "_WORTH_A_THREAD", 1)
    of_a, of_b, most, pieces = SHARED[name]
    a, b = RANDOM.standard_normal(of_a, np.float32), RANDOM.standard_normal(of_b, np.float32)
    if is_turned:
        a, b = (np.ascontiguousarray(each.swapaxes(-1, -2)).swapaxes(-1, -2) for each in (a, b))
    wanted = np.matmul(a, b)
    made, threads = np.full_like(wanted, np.nan), Turns(most)
    with looking(never, threads):
        assert matmul(np, a, b, out=made) is made
        np.testing.assert_allclose(made, wanted, 1e-5, 1e-4)
        np.testing.assert_allclose(matmul(np, a, b), wanted, 1e-5, 1e-4)
    whole = np.full_like(wanted, np.nan)
    assert matmul(np, a, b, out=whole) is whole
    np.testing.assert_allclose(whole, wanted, 1e-5, 1e-4)
    assert threads.counts == [pieces] * 2


@pytest.mark.parametrize("multiply", [product, multiplied])
def test_what_is_made_is_packed(multiply: Callable[..., Any]) -> None:
    """Though NumPy lays it out as its operands: what follows takes it for a list of elements."""
    a = RANDOM.standard_normal((3, 2, 5, 4), np.float32).swapaxes(0, 1)
    b = RANDOM.standard_normal((3, 2, 4, 6), np.float32).swapaxes(0, 1)
    made = multiply(np, a, b)
    assert made.flags.c_contiguous
    np.testing.assert_allclose(made, np.matmul(a, b), 1e-5, 1e-5)


def test_who_has_enough_to_do() -> None:
    """A thread is asked for each 300 us. One that looks seldom is not: what takes long is in pieces for one, too."""
    assert pieces_of((256, 256), (256, 256), 16) == 1
    assert pieces_of((512, 512), (512, 512), 16) == 8
    assert pieces_of((2048, 2048), (2048, 2048), 16) == 16
    assert pieces_of((1, 1024), (1024, 4096), 16) == 2  # which is to be read, though it is few products
    assert pieces_of((8192, 8192), (8192, 8192), 1) == 33
    assert pieces_of((2048, 8, 8), (8, 8), 16) == pieces_of((8, 8), (2048, 8, 8), 16) == 16  # so many calls


def test_it_is_shared_by_threads_and_ended_in_each(device: NumpyDevice) -> None:
    a, b = RANDOM.standard_normal((2, 640, 640), np.float32)
    operator = compiled(gemm(a, b))
    assert isinstance(device.prepare(operator), ProductKernel)
    with mock.patch.object(Threads, "share", autospec=True, side_effect=Threads.share) as share:
        (made,) = run(device, operator, {"ATensor": a, "BTensor": b}).values()
        assert [call.args[1] for call in share.call_args_list] == [2]
    np.testing.assert_allclose(made, a @ b, 1e-4, 1e-4)
    looks: list[None] = []

    def over() -> bool:
        looks.append(None)
        return len(looks) > 1

    with pytest.raises(Cancelled):
        device.prepare(operator).dispatch([each.data.cast("B") for each in (a, b)], [made.data.cast("B")], over)


def test_without_threads_pieces_follow_each_other() -> None:
    done: list[int] = []
    shared(3, done.append)
    assert done == [0, 1, 2]
    looks: list[None] = []
    with looking(lambda: looks.append(None)):
        shared(3, done.append)
    assert (done, len(looks)) == ([0, 1, 2] * 2, 3)


@pytest.mark.parametrize("kind", ["MULTIHEAD_ATTENTION", "CONVOLUTION"])
def test_operators_that_multiply_share_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no loops for them."""
    if kind == "CONVOLUTION":  # backward, which is a product and what adds up its results
        x, filters = RANDOM.standard_normal((2, 8, 9, 9), np.float32), RANDOM.standard_normal((8, 4, 3, 3), np.float32)
        given = {"InputTensor": x, "FilterTensor": filters}
        document: dict[str, Any] = {name: [1, 1] for name in ("Strides", "Dilations")}
        document |= {name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")}
        document |= {"GroupCount": 1, "Direction": "BACKWARD", "Mode": "CROSS_CORRELATION"}
    else:
        given = {f"{name}Tensor": RANDOM.standard_normal((2, 40, 32), np.float32) for name in ("Query", "Key", "Value")}
        document = {"Scale": 0.5, "HeadCount": 2, "MaskType": "NONE"}
    operator = compiled({"Type": f"DML_OPERATOR_{kind}", **document} | {name: desc_of(x) for name, x in given.items()})
    results, counts = [], []
    with ThreadPoolExecutor(1) as helpers:
        for worth in (1 << 10, 1 << 40):
            monkeypatch.setattr(arrays, "_WORTH_A_THREAD", worth)
            with mock.patch.object(Threads, "share", autospec=True, side_effect=Threads.share) as share:
                results.append(run(NumpyDevice(helpers, 2), operator, given))
            counts.append([call.args[1] for call in share.call_args_list])
    assert 2 in counts[0]
    assert not counts[1]
    for name, made in results[0].items():
        np.testing.assert_allclose(made, results[1][name], 1e-5, 1e-5)


TURNED = {"TransB": "TRANSPOSE"}
ALONE: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = {
    "few products": ((255, 128), (128, 128), {}, False),
    "many": ((256, 128), (128, 128), {}, True),
    "odd": ((403, 131), (131, 87), {"Alpha": 0.5}, True),
    "matrices": ((3, 5, 80, 70), (3, 5, 70, 60), {}, True),
    "the first turned": ((128, 300), (128, 130), {"TransA": "TRANSPOSE"}, True),
    "the second turned": ((256, 128), (128, 128), TURNED, True),
    "turned, by one row": ((1, 4096), (1024, 4096), TURNED, True),
    "turned, by few rows": ((12, 1030), (1031, 1030), TURNED | {"Alpha": 0.5}, True),
    "turned, by few rows, and larger": ((3, 1024), (8193, 1024), TURNED, True),
    "both turned, by few rows": ((1030, 12), (1031, 1030), TURNED | {"TransA": "TRANSPOSE"}, True),
    "turned, and odd": ((67, 131), (487, 131), TURNED, True),
    "turned matrices": ((3, 5, 80, 70), (3, 5, 60, 70), TURNED, True),
    "a column turned": ((4096, 1024), (1, 1024), TURNED, True),
    "turned, as many bytes": ((13, 512), (8192, 512), TURNED, True),
    "turned, and larger": ((13, 512), (8193, 512), TURNED, False),
    "many rows": ((20001, 32), (32, 17), {}, True),
    "of rows that the cache holds": ((512, 512), (512, 513), {}, True),
    "of more": ((513, 512), (512, 513), {}, False),
    "as many bytes near": ((512, 512), (512, 2048), {}, True),
    "more": ((512, 512), (512, 2049), {}, False),
    "read once": ((6, 512), (512, 8192), {}, True),
    "read once, and larger": ((6, 512), (512, 8193), {}, False),
    "activated": ((256, 128), (128, 128), {"FusedActivation": {"Type": "ACTIVATION_RELU"}}, True),
    "activated by rows": ((256, 128), (128, 128), {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}, False),
}
"""Sizes, members, and whether they are done by loops."""


@pytest.mark.parametrize("name", ALONE)
def test_by_whom(device: NumpyDevice, name: str) -> None:
    """Against float64, with something added."""
    of_a, of_b, members, is_looped = ALONE[name]
    a, b = RANDOM.standard_normal(of_a, np.float32), RANDOM.standard_normal(of_b, np.float32)
    first = a.swapaxes(-1, -2) if members.get("TransA") == "TRANSPOSE" else a
    second = b.swapaxes(-1, -2) if members.get("TransB") == "TRANSPOSE" else b
    wanted = np.matmul(first.astype(np.float64), second) * members.get("Alpha", 1)
    c = RANDOM.standard_normal(wanted.shape, np.float32)
    wanted += 2 * c.astype(np.float64)
    match members.get("FusedActivation", {}).get("Type"):
        case "ACTIVATION_RELU":
            wanted = np.maximum(wanted, 0)
        case "ACTIVATION_SOFTMAX":
            wanted = (e := np.exp(wanted - wanted.max(-1, keepdims=True))) / e.sum(-1, keepdims=True)
    operator = compiled(gemm(a, b, **members) | {"CTensor": desc_of(c), "Beta": 2})
    kernel = device.prepare(operator)
    assert isinstance(kernel, CallsKernel if is_looped else ProductKernel)
    (made,) = run(device, operator, {"ATensor": a, "BTensor": b, "CTensor": c}).values()
    np.testing.assert_allclose(made, wanted, 1e-4, 1e-4)
    is_short = wanted.size * first.shape[-1] <= products.INLINE and b.nbytes <= products.MOST_READ
    assert kernel.runs_inline is device.prepare(operator).runs_inline is is_short


HALVES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = {
    "little": ((1, 680), (680, 680), {}, False),
    "one row": ((1, 700), (700, 701), {}, True),
    "some rows": ((7, 301), (301, 1999), {"Alpha": 0.5}, True),
    "larger than caches": ((13, 1030), (1030, 8200), {}, True),
    "many rows": ((256, 600), (600, 130), {}, True),
    "more": ((257, 600), (600, 130), {}, False),
    "of a matrix that is not near": ((64, 512), (512, 4097), {}, True),
    "more rows of that": ((65, 512), (512, 4097), {}, False),
    "the first turned": ((300, 20), (300, 1513), {"TransA": "TRANSPOSE"}, True),
    "turned, by one row": ((1, 700), (701, 700), TURNED, True),
    "turned, by few rows": ((7, 131), (4087, 131), TURNED | {"FusedActivation": {"Type": "ACTIVATION_RELU"}}, True),
    "turned, by few rows, and larger": ((3, 1024), (8193, 1024), TURNED, True),
    "turned, and odd": ((19, 131), (4087, 131), TURNED, True),
    "turned, and larger": ((13, 1024), (8193, 1024), TURNED, False),
    "turned matrices": ((3, 5, 20, 70), (3, 5, 330, 70), TURNED, True),
    "activated": ((20, 512), (512, 515), {"FusedActivation": {"Type": "ACTIVATION_RELU"}}, True),
    "activated by rows": ((20, 512), (512, 515), {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}, False),
}
"""The same of FLOAT16."""


def by_loops(team: Team, known: dict[str, Any] | None, members: dict[str, Any], *given: Any) -> Any:
    """The product of two matrices with twice a third one added, as loops make it; nothing is written behind it. None
    if there are none for it."""
    a, b, c = given
    operator = compiled(gemm(a, b, **members) | {"CTensor": desc_of(c), "Beta": 2})
    kernel = product_kernel(operator, team, Threads(cast(Executor, None), 1), known)
    if kernel is None:
        return None
    assert isinstance(kernel, CallsKernel)
    made = np.full(c.size + 64, 7, c.dtype)
    kernel.dispatch([bytes_of(each) for each in given], [made[: c.size].data.cast("B")], lambda: False)
    assert (made[c.size :] == 7).all()
    return made[: c.size].reshape(c.shape)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("floats", [0, *OTHERS])
def test_halves(device: NumpyDevice, name: str, floats: int) -> None:
    """Summed up in float32 and rounded once, by vectors of this processor's and of other ones; and the same if the
    matrix is packed before, and for each row as by itself, unless it is turned and multiplied as it lies."""
    of_a, of_b, members, is_looped = HALVES[name]
    a, b = (RANDOM.standard_normal(sizes, np.float32).astype(np.float16) for sizes in (of_a, of_b))
    is_turned = members.get("TransA") == "TRANSPOSE"
    first = (a.swapaxes(-1, -2) if is_turned else a).astype(np.float64)
    second = (b.swapaxes(-1, -2) if members.get("TransB") == "TRANSPOSE" else b).astype(np.float64)
    wanted = np.matmul(first, second) * members.get("Alpha", 1)
    c = RANDOM.standard_normal(wanted.shape, np.float32).astype(np.float16)
    team = Team(narrow(floats), 2) if floats else device.team
    assert team
    made = by_loops(team, None, members, a, b, c)
    if not is_looped:
        assert made is None
        return
    wanted += 2 * c.astype(np.float64)
    if "FusedActivation" in members:
        wanted = np.maximum(wanted, 0)
    most = (first.shape[-1] + 2) * 2.0**-24 * (np.matmul(abs(first), abs(second)) + 2 * abs(c.astype(np.float64)))
    assert (abs(made - wanted) <= most + 2.0**-11 * (abs(wanted) + most) + 2.0**-25).all()
    if b.ndim == 2:
        one = slice(3, 4) if len(c) > 3 else slice(1)
        alone = (a[:, one] if is_turned else a[one], b, c[one])
        of_packed = by_loops(team, {"BTensor": bytes_of(b)}, members, a, b, c)
        np.testing.assert_array_equal(by_loops(team, {"BTensor": bytes_of(b)}, members, *alone), of_packed[one])
        np.testing.assert_array_equal(by_loops(team, {}, members, a, b, c), made)
        is_turned = members.get("TransB") == "TRANSPOSE"
        if not is_turned:
            np.testing.assert_array_equal(by_loops(team, {}, members, *alone), made[one])
        if not is_turned or len(c) > products.MOST_ALONG:
            np.testing.assert_array_equal(of_packed, made)


@pytest.mark.parametrize("floats", [0, *OTHERS])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_large_matrix_is_packed_once_for_any_number_of_rows(device: NumpyDevice, dtype: str, floats: int) -> None:
    """A small one as is best for the rows, of which each is as by itself, too."""
    team = Team(narrow(floats), 2) if floats else device.team
    assert team
    for columns, is_large in ((500, False), (1031, True)):
        b = RANDOM.standard_normal((1024, columns)).astype(dtype)
        if dtype == "float32":
            b = b[: 520 if is_large else 500]
        assert (b.nbytes >= products.LARGE) is is_large
        layouts = []
        for rows in (1, 2, 3, 4, 13, 40):
            a = np.ones((rows, len(b)), dtype)
            packing = product_packing_of(compiled(gemm(a, b)), team.compiler, ["BTensor"])
            assert packing
            layouts.append(packing.layout)
        assert (len(set(layouts)) == 1) is is_large
        if dtype == "float16":
            a, c = (RANDOM.standard_normal((13, many)).astype(dtype) for many in b.shape)
            known = {"BTensor": bytes_of(b)}
            whole = by_loops(team, known, {}, a, b, c)
            for some in (slice(1), slice(3, 5), slice(7, 10)):
                np.testing.assert_array_equal(by_loops(team, known, {}, a[some], b, c[some]), whole[some])


@subnormal_operands.noted
@pytest.mark.parametrize("columns", [1, 31, 33, 77])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nothing_is_computed_of_what_memory_happens_to_hold(
    device: NumpyDevice, dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last columns of a matrix that is turned first, which fill no panel."""
    a, b, c = (np.ones(sizes, dtype) for sizes in ((3, 16, 20), (3, columns, 20), (3, 16, columns)))
    assert device.team
    team = Team(device.team.compiler, 1)
    monkeypatch.setattr(products, "LEAST_ALONE", 0)
    monkeypatch.setattr(alone, "aligned", poisoned)
    by_loops(team, None, TURNED, a, b, c)  # it is compiled meanwhile
    with subnormal_operands.unused():
        made = by_loops(team, None, TURNED, a, b, c)
    assert (made == 22).all()


def poisoned(size: int) -> tuple[Any, int]:
    held = subnormal_operands.memory(size + LINE)
    return held, whole_lines(held.ctypes.data)


def test_halves_that_are_packed_are_told(device: NumpyDevice) -> None:
    """They take two bytes each; what would take too many is read as it lies."""
    assert device.team
    a, c = np.ones((4, 64), np.float16), np.zeros((4, 256), np.float16)
    operator = compiled(gemm(a, np.ones((64, 256), np.float16)) | {"CTensor": desc_of(c)})
    packing = product_packing_of(operator, device.team.compiler, ["BTensor"])
    assert packing
    assert packing.nbytes == 2 * 64 * 256
    with mock.patch.object(products, "MOST_PACKED", 2 * 64 * 256 - 1):
        assert product_packing_of(operator, device.team.compiler, ["BTensor"]) is None
        known = {"BTensor": memoryview(b"")}
        assert isinstance(product_kernel(operator, device.team, Threads(cast(Executor, None), 1), known), CallsKernel)


def test_a_matrix_is_packed_for_as_many_rows_as_there_are(device: NumpyDevice) -> None:
    """Once for all products whose panels are as wide, and for others by itself."""
    assert device.team
    b, c = RANDOM.standard_normal((40, 300), np.float32), np.zeros((1, 300), np.float32)
    known = {"BTensor": bytes_of(b)}
    panels: dict[int, list[int]] = {}
    kernels = []
    for rows in (1, 2, 3, 8, 11, 20):
        a, out = RANDOM.standard_normal((rows, 40), np.float32), np.zeros((rows, 300), np.float32)
        operator = compiled(gemm(a, b, Beta=0) | {"CTensor": desc_of(np.broadcast_to(c, out.shape))})
        kernel = device._kernel(operator, known)
        kernel.dispatch([bytes_of(each) for each in (a, b, c)], [out.data.cast("B")], lambda: False)
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
        packing = product_packing_of(operator, device.team.compiler, known)
        assert packing
        assert isinstance(kernel, ProductKernel)
        assert kernel._loops
        assert kernel._loops.panels is not None
        kernels.append(kernel)
        panels.setdefault(packing.layout[-1], []).append(kernel._loops.panels.ctypes.data)  # type: ignore[index]
    assert len(panels) > 1
    assert all(len(set(addresses)) == 1 for addresses in panels.values())
    assert len({addresses[0] for addresses in panels.values()}) == len(panels)


@pytest.mark.parametrize(("rows", "by_loop"), [(51, False), (52, True), (40_000, True)])
def test_what_a_blas_makes_is_activated_by_a_loop(device: NumpyDevice, rows: int, *, by_loop: bool) -> None:
    """From as many elements on as are worth it, and by pieces that threads share."""
    a, b = RANDOM.standard_normal((rows, 3), np.float32), RANDOM.standard_normal((3, 5), np.float32)
    operator = compiled(gemm(a, b, FusedActivation={"Type": "ACTIVATION_LEAKY_RELU", "Alpha": 0.25}))
    with mock.patch.object(ActivationLoop, "apply", autospec=True, side_effect=ActivationLoop.apply) as apply:
        (made,) = run(device, operator, {"ATensor": a, "BTensor": b}).values()
    assert apply.called is by_loop
    wanted = a.astype(np.float64) @ b
    np.testing.assert_allclose(made, np.where(wanted < 0, wanted / 4, wanted), 1e-5, 1e-5)
    assert device.prepare(operator).runs_inline


def test_what_takes_long_is_not_inline(device: NumpyDevice) -> None:
    a, b = RANDOM.standard_normal((600, 256), np.float32), RANDOM.standard_normal((256, 256), np.float32)
    operator = compiled(gemm(a, b))
    run(device, operator, {"ATensor": a, "BTensor": b})
    assert isinstance(device.prepare(operator), CallsKernel)
    assert not device.prepare(operator).runs_inline


def test_loops_look_often_enough(device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many products that a thread would look too seldom are in more calls, and very many the BLAS'."""
    a, b = RANDOM.standard_normal((64, 64, 64), np.float32), RANDOM.standard_normal((64, 64, 64), np.float32)
    operator = compiled(gemm(a, b))
    monkeypatch.setattr(products, "MOST_OF_A_CALL", 1 << 20)
    kernel = device.prepare(operator)
    assert isinstance(kernel, CallsKernel)
    (stage,) = kernel.calls().stages
    assert len(stage) >= 16
    assert max(call.work for call in stage) <= 1 << 20
    monkeypatch.setattr(products, "MOST_LOOPED", 1 << 23)
    assert isinstance(device.prepare(operator), ProductKernel)
    (made,) = run(device, operator, {"ATensor": a, "BTensor": b}).values()
    np.testing.assert_allclose(made, a @ b, 1e-4, 1e-4)
