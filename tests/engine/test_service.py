"""What the service leaves behind when nobody waits for a dispatch any more."""

import asyncio
import gc
import itertools
import logging
import re
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.cpu.llvm.compiler import Unavailable
from app.devices.device import Cancelled, ExecutionRecord
from app.engine import service as services
from app.engine.dispatch import DispatchRequest
from app.engine.graph_entries import LocalEntries, Record
from app.engine.graphs import GraphRequest
from app.engine.prepared import Bound, Outcome, Prepared
from app.engine.service import Abandoned, DeadlineExceeded, Draining, Service, State
from app.engine.workers import QueueFull, Ticket
from app.graphs.descriptor import GraphDesc
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryExhausted, MemoryShare, RequestOver
from app.memory.buffers import Buffer
from app.operators.looks import look, looking
from app.settings import Settings
from app.stages import Stages
from app.steps import at_once
from tests.http.load import NOT_BRIEF, slow_dispatch
from tests.messages import CELU, request

HALF_A_MINUTE = slow_dispatch(1 << 31)


class Data(bytearray):
    """Tensor data of which one can tell whether they are still there."""


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(
        Settings(
            gpus="none", threads=1, llvm=False, max_tensor_bytes=1 << 33, max_memory_bytes=1 << 40, deadline_seconds=0.2
        )
    )
    made.open()
    yield made
    made.close()


def with_data(message: dict[str, Any]) -> dict[str, Any]:
    """`message` as it comes from the wire."""
    return message | {"inputs": {name: memoryview(Data(data)) for name, data in message["inputs"].items()}}


async def dispatch(service: Service, message: dict[str, Any], hang_up: "asyncio.Future[Any] | None" = None) -> None:
    stated = validate(DispatchRequest, message)
    with service.memory.open() as memory:
        prepared = await service.prepare(stated)
        await service.execute(prepared, stated.inputs, memory, (lambda: hang_up) if hang_up else None)


async def is_abandoned(service: Service, message: dict[str, Any], hang_up: "asyncio.Future[Any]") -> bool:
    try:
        await dispatch(service, message, hang_up)
    except Abandoned:
        return True
    return False


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - what happens, happens in a worker
        await asyncio.sleep(0.01)


def test_nothing_is_logged_of_a_dispatch_that_was_given_up(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await dispatch(service, with_data(HALF_A_MINUTE))
        await until(lambda: service.pool.running == 0)
        await asyncio.sleep(0.1)  # the worker's last word comes through the loop
        gc.collect()  # asyncio tells of an exception that nobody awaited when it is thrown away

    asyncio.run(main())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_nobody_listens_for_a_client_whose_dispatch_is_over(service: Service) -> None:
    async def main(message: dict[str, Any], error: type[Exception] | None) -> None:
        hang_up = asyncio.get_running_loop().create_future()
        if error is None:
            await dispatch(service, message, hang_up)
        else:
            with pytest.raises(error):
                await dispatch(service, message, hang_up)
        await asyncio.sleep(0)
        assert hang_up.cancelled()

    asyncio.run(main(with_data(QUEUED), None))
    asyncio.run(main(with_data(HALF_A_MINUTE), DeadlineExceeded))


def test_the_data_of_a_dispatch_that_waited_in_vain_are_let_go(service: Service) -> None:
    """At once, not when a worker comes to its place in the queue: they are no longer accounted for."""
    service.settings.deadline_seconds = 1000
    message = with_data(request(CELU, {"InputTensor": np.ones(NOT_BRIEF, np.float32)}))
    data = weakref.ref(message["inputs"]["InputTensor"].obj)

    async def main(message: dict[str, Any]) -> None:
        hang_ups = [asyncio.get_running_loop().create_future() for _ in range(2)]
        running = asyncio.ensure_future(is_abandoned(service, with_data(HALF_A_MINUTE), hang_ups[0]))
        await until(lambda: service.pool.running == 1)
        waiting = asyncio.ensure_future(is_abandoned(service, message, hang_ups[1]))
        await until(lambda: service.pool.waiting == 1)
        message.clear()

        hang_ups[1].set_result(None)
        assert await waiting
        del waiting
        gc.collect()
        assert service.pool.running == 1
        assert data() is None

        hang_ups[0].set_result(None)
        assert await running
        await until(lambda: service.pool.running == 0)

    asyncio.run(main(message))


def test_a_refusal_by_a_worker_leaves_nothing_behind(service: Service) -> None:
    """Not even for the garbage collector: the memory of a large body would be gone long after its request."""
    kept: list[weakref.ref[Data]] = []

    async def refused() -> None:
        data = Data(1)
        kept.append(weakref.ref(data))

        def work(ticket: Ticket[None]) -> None:
            raise LimitExceeded("a limit", "bytes", len(data), 0)

        with service.memory.open() as memory:
            await service.run(work, memory, lambda: asyncio.get_running_loop().create_future())

    async def main() -> None:
        with pytest.raises(LimitExceeded) as refusal:
            await refused()
        del refusal
        await until(lambda: kept[0]() is None)

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(main(), 10))
    finally:
        gc.enable()


SMALL = request(CELU, {"InputTensor": np.ones(3, np.float32)})
QUEUED = request(CELU, {"InputTensor": np.ones(NOT_BRIEF, np.float32)})


@pytest.mark.parametrize("message", [SMALL, QUEUED], ids=["here", "by a worker"])
def test_what_comes_after_the_end_is_refused(service: Service, message: dict[str, Any]) -> None:
    asyncio.run(dispatch(service, with_data(message)))
    service.close()
    with pytest.raises(Draining):
        asyncio.run(dispatch(service, with_data(message)))
    with pytest.raises(Draining):
        service.check_inline()
    with pytest.raises(Draining), service.memory.open() as memory:
        asyncio.run(service.run(lambda ticket: None, memory))
    assert service.memory.used == 0


def test_it_says_whether_it_takes_more() -> None:
    made = Service(Settings(gpus="none", threads=1, llvm=False))
    states = [made.capabilities()["state"]]
    for act in (made.open, made.drain, made.close):
        act()
        states.append(made.capabilities()["state"])
        if act != made.close:
            computed(made, with_data(SMALL))
            asyncio.run(dispatch(made, with_data(QUEUED)))
    assert states == [State.STARTING, State.READY, State.DRAINING, State.DRAINING]
    with pytest.raises(RuntimeError, match="after shutdown"):
        made.pool.submit(lambda ticket: None)
    made = Service(Settings(gpus="none", threads=1, llvm=False))
    made.close()
    assert made.capabilities()["state"] == State.DRAINING


def test_opening_prepares_devices_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    made, opened = Service(Settings(gpus="none", threads=2, llvm=False)), list[str]()
    monkeypatch.setattr(made.placement, "open", lambda: opened.append("devices"))
    monkeypatch.setattr(made.pool, "open", lambda: opened.append("workers"))
    made.open()
    assert opened == ["devices", "workers"]
    made.close()


def test_graphs_may_be_those_of_several_processes() -> None:
    entries = LocalEntries()
    made = Service(Settings(gpus="none", threads=1, llvm=False), entries)
    assert made.graphs.count == 0
    capability: Any = None
    entries.add(Record("0" * 32, None, "auto", 0.0, 1, capability), [])
    assert made.graphs.count == 1
    made.close()
    made = Service(Settings(gpus="none", threads=1, llvm=False))
    assert made.graphs.count == 0
    made.close()


def test_a_full_queue_is_full_for_what_is_small(service: Service) -> None:
    places = [service.pool.reserve() for _ in range(service.settings.threads + service.settings.queue_depth)]
    acts: list[Callable[[], object]] = [service.check_inline, lambda: computed(service, with_data(SMALL))]
    for act in acts:
        with pytest.raises(QueueFull):
            act()
    service.pool.release(places.pop())
    service.check_inline()
    computed(service, with_data(SMALL))
    assert service.memory.used == 0


def test_a_device_that_there_is_not(service: Service) -> None:
    message = "There is no device nunpy; give auto or numpy. Did you mean numpy?"
    graph = GraphRequest(validate(GraphDesc, chain(2, "ELEMENT_WISE_EXP")), NEWEST, {}, {})
    with service.memory.open() as memory:
        compiled = service.compile(graph, memory, lambda: False)
    acts: list[Callable[[], object]] = [
        lambda: at_once(service.prepare(validate(DispatchRequest, SMALL | {"device": "nunpy"}))),
        lambda: service.prepare_graph(compiled, "nunpy"),
    ]
    for act in acts:
        with pytest.raises(ContractError) as refusal:
            act()
        (violation,) = refusal.value.violations
        assert (violation.path, violation.given, violation.allowed) == (("device",), "nunpy", ["auto", "numpy"])
        assert violation.message == message
    for name in ("auto", "numpy"):
        assert at_once(service.prepare(validate(DispatchRequest, SMALL | {"device": name}))).device.name == "numpy"
        assert service.prepare_graph(compiled, name).device.name == "numpy"


def test_a_gpu_that_there_is_not_tells_why(service: Service) -> None:
    (why,) = service.placement.troubles()
    with pytest.raises(ContractError, match=f"^There is no device cuda:0, since {re.escape(why)}; give auto or numpy"):
        service.check_device("cuda:0")


def test_where_in_a_request_it_is_wrong(service: Service) -> None:
    desc = SMALL["operator"]["InputTensor"]
    wrong: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"operator": SMALL["operator"] | {"OutputTensor": desc | {"Sizes": [2]}}}, ("operator", "OutputTensor")),
        ({"in_place": "OutputTensor"}, ("in_place",)),
    ]
    for fields, path in wrong:
        with pytest.raises(ContractError) as refusal:
            at_once(service.prepare(validate(DispatchRequest, SMALL | fields)))
        (violation,) = refusal.value.violations
        assert violation.path[: len(path)] == path
    service.settings.max_tensor_bytes = 11
    with pytest.raises(LimitExceeded, match="max_tensor_bytes") as over:
        at_once(service.prepare(validate(DispatchRequest, SMALL)))
    assert over.value.path[0] == "operator"


@pytest.mark.parametrize("message", [SMALL, QUEUED], ids=["here", "by a worker"])
def test_how_long_it_took_and_when_what_happened(service: Service, message: dict[str, Any]) -> None:
    stated, stages = validate(DispatchRequest, with_data(message)), Stages()
    prepared = at_once(service.prepare(stated))

    async def main() -> Outcome:
        with service.memory.open() as memory:
            return await service.execute(prepared, stated.inputs, memory, stages=stages)

    outcome = asyncio.run(main())
    assert 0 < outcome.compute_seconds < 10
    assert 0 <= outcome.queue_seconds < 10
    assert [stage.name for stage in stages.done] == (["kernel"] if message is SMALL else ["queue", "kernel"])


def test_the_deadline_counts_from_when_a_place_was_reserved(service: Service) -> None:
    service.settings.deadline_seconds = 50
    stated, place = validate(DispatchRequest, with_data(HALF_A_MINUTE)), service.pool.reserve()
    place.submitted -= 60

    async def main() -> None:
        with service.memory.open() as memory, pytest.raises(DeadlineExceeded):
            await service.execute(at_once(service.prepare(stated)), stated.inputs, memory, place=place)

    asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("message", [SMALL, QUEUED], ids=["here", "by a worker"])
def test_what_has_a_place_was_admitted(service: Service, message: dict[str, Any]) -> None:
    """It is computed though nothing else is taken any more, and gives its place free."""
    stated = validate(DispatchRequest, with_data(message))
    prepared, place = at_once(service.prepare(stated)), service.pool.reserve()
    service._is_closed = True

    async def main() -> Outcome:
        with service.memory.open() as memory:
            return await service.execute(prepared, stated.inputs, memory, place=place)

    (made,) = asyncio.run(main()).outputs.values()
    assert bytes(made) == message["inputs"]["InputTensor"]
    assert service.pool.waiting == service.pool.running == 0


def test_memory_is_held_as_long_as_a_worker_has_it() -> None:
    account = MemoryAccount(100)
    share = account.open()
    share.take(10)
    with share.lent():
        share.take(20)
        share.close()
        assert account.used == 30
        with pytest.raises(RequestOver):
            share.take(1)
        with pytest.raises(RequestOver):
            share.ensure_open()
    assert account.used == 0
    with pytest.raises(RequestOver), share.lent():
        pass


def computed(service: Service, message: dict[str, Any]) -> list[Buffer]:
    """The outputs."""
    stated = validate(DispatchRequest, message)
    with service.memory.open() as memory:
        return [*service.execute_here(at_once(service.prepare(stated)), stated.inputs, memory).outputs.values()]


def test_what_is_not_written_is_0(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is used again: gaps between an output's elements must not show what it held before."""
    output = {"DataType": "FLOAT32", "Sizes": [2, 2], "Strides": [5, 2]}
    message = with_data(request(CELU, {"InputTensor": np.ones((2, 2), np.float32)}, {"OutputTensor": output}))
    monkeypatch.setattr(MemoryShare, "buffer", lambda share, size: memoryview(bytearray(b"x" * size)))
    (made,) = computed(service, message)
    assert np.frombuffer(made, np.float32).tolist() == [1, 0, 1, 0, 0, 1, 0, 1]


def test_an_output_takes_the_memory_of_an_input_that_may_be_written_to(service: Service) -> None:
    message = request(CELU, {"InputTensor": np.array([-1, 2, 3], np.float32)})
    data = message["inputs"]["InputTensor"]
    taken, kept = memoryview(bytearray(data)), memoryview(data)
    (made,) = computed(service, message | {"inputs": {"InputTensor": taken}})
    assert made.obj is taken.obj
    (again,) = computed(service, message | {"inputs": {"InputTensor": kept}})
    assert again == made
    assert kept != made


def test_in_place_of_what_may_not_be_written_to(service: Service) -> None:
    message = request(CELU, {"InputTensor": np.array([-1, 2, 3], np.float32)})
    data = bytes(message["inputs"]["InputTensor"])
    given = memoryview(bytes(data))
    (made,) = computed(service, message | {"inputs": {"InputTensor": given}, "in_place": "InputTensor"})
    assert np.frombuffer(made, np.float32)[1:].tolist() == [2, 3]
    assert made != data
    assert given == data


def test_an_output_takes_no_more_of_an_input_than_it_needs(service: Service) -> None:
    layout = {"DataType": "FLOAT32", "Sizes": [1, 3], "TotalTensorSizeInBytes": 20}
    message = request(CELU, {"InputTensor": np.ones(5, np.float32)}, {"InputTensor": layout, "OutputTensor": layout})
    for in_place in ({}, {"in_place": "InputTensor"}):
        stated = with_data(message) | in_place
        data = stated["inputs"]["InputTensor"]
        (made,) = computed(service, stated)
        assert (data.nbytes, made.nbytes) == (20, 12)
        assert made.obj is data.obj


def test_a_kernel_is_handed_all_its_memory(service: Service) -> None:
    prepared = at_once(service.prepare(validate(DispatchRequest, with_data(SMALL))))
    handed: list[Any] = []
    kernel: Any = SimpleNamespace(dispatch=lambda *given: handed.append(given[:2]))
    prepared.kernel = kernel
    one, output, scratch = (memoryview(bytearray(size)) for size in (1, 2, 3))
    for given, targets in ((None, [output]), (scratch, [output, scratch])):
        prepared.dispatch(Bound([one], {"OutputTensor": output}, given), lambda: False)
        assert handed.pop() == ([one], targets)


def test_data_are_bound_by_name_and_of_the_right_length(service: Service) -> None:
    x = {"DataType": "FLOAT32", "Sizes": [3]}
    document = {"operator": {"Type": "ELEMENT_WISE_SUBTRACT", "ATensor": x, "BTensor": x}, "inputs": {}}
    prepared = at_once(service.prepare(validate(DispatchRequest, document)))
    a, b = (memoryview(bytes(12)) for _ in range(2))
    bound = prepared.bind({"BTensor": b, "ATensor": a})
    assert [id(each) for each in bound] == [id(a), id(b)]
    for wrong, pointer in (
        ({"ATensor": a}, "/inputs/BTensor"),
        ({"ATensor": a, "BTensor": b[:11]}, "/inputs/BTensor"),
        ({"ATensor": a, "BTensor": memoryview(bytes(17))}, "/inputs/BTensor"),
        ({"ATensor": a, "BTensor": b, "CTensor": b}, "/inputs/CTensor"),
    ):
        with pytest.raises(ContractError) as refused:
            prepared.bind(wrong)
        assert [each.pointer for each in refused.value.violations] == [pointer]


@pytest.mark.parametrize("in_place", [None, "InputTensor"])
def test_an_answer_says_whether_it_is_in_place(service: Service, in_place: str | None) -> None:
    prepared = at_once(service.prepare(validate(DispatchRequest, with_data(SMALL) | {"in_place": in_place})))
    ran = ExecutionRecord("numpy", "cpu", "it failed")
    answer = prepared.answer(ran, {"OutputTensor": b"data"}, 0.25, 0.5)
    assert answer["execution"] == {
        "device": "numpy",
        "kind": "cpu",
        "fallback_reason": "it failed",
        "in_place": in_place is not None,
        "queue_seconds": 0.25,
        "compute_seconds": 0.5,
    }


def test_a_gpu_leaves_the_inputs_as_they_are(service: Service) -> None:
    """If it fails, they are NumPy's to compute with."""
    prepared = at_once(service.prepare(validate(DispatchRequest, with_data(SMALL))))
    gpu: Any = SimpleNamespace(kind="cuda", prepare=prepared.device.prepare)
    there = Prepared(prepared.work, None, gpu)
    assert (prepared.reusable, prepared.stage) == ([0], "kernel")
    assert (there.reusable, there.stage) == ([], "dispatch")
    in_place = Prepared(prepared.work, "InputTensor", gpu)
    (output,) = prepared.output_bytes.values()
    assert (there.own_bytes, in_place.own_bytes) == (0, output), "of which it works on a copy"
    assert Prepared(prepared.work, "InputTensor", prepared.device).own_bytes == 0


def test_without_llvm_numpy_computes_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unavailable(*_: object) -> None:
        raise Unavailable("it is not installed")

    caplog.set_level(logging.INFO)
    for given, has_loops in ((True, True), (False, False)):
        made = Service(Settings(gpus="none", threads=1, llvm=given))
        assert (made.loops is not None) == has_loops
        made.close()
    told = "NumPy computes all that the CPU does: "
    assert told not in caplog.text
    monkeypatch.setattr(services, "Compiler", unavailable)
    made = Service(Settings(gpus="none", threads=1))
    assert made.loops is None
    made.close()
    assert told + "it is not installed" in caplog.text


ADAM = ("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor")


@pytest.mark.parametrize("name", ADAM)
def test_in_place_of_what_later_outputs_need(service: Service, name: str) -> None:
    """The one that takes its memory is computed last."""
    x, one = np.array([0.5, 2, 7], np.float32).reshape(1, 1, 1, 3), np.ones((1, 1, 1, 1), np.float32)
    attributes = {"LearningRate": 0.5, "Beta1": 0.5, "Beta2": 0.5, "Epsilon": 0.5}
    message = request("ADAM_OPTIMIZER", dict.fromkeys(ADAM, x) | {"TrainingStepTensor": one}, attributes)
    inputs = {each: memoryview(data) for each, data in message["inputs"].items()}
    apart = computed(service, message | {"inputs": inputs})
    in_place = with_data(message) | {"in_place": name}
    made = computed(service, in_place)
    assert made == apart
    assert made[0].obj is in_place["inputs"][name].obj


def test_gaps_are_not_made_in_the_memory_of_an_input(service: Service) -> None:
    """They would be made before it is read."""
    layout = {"DataType": "FLOAT32", "Sizes": [1, 2, 2], "Strides": [8, 5, 2]}
    data = {"InputTensor": np.array([1, 9, 2, 9, 9, 3, 9, 4], np.float32)}
    (made,) = computed(service, with_data(request(CELU, data, {"InputTensor": layout, "OutputTensor": layout})))
    assert np.frombuffer(made, np.float32).tolist() == [1, 0, 2, 0, 0, 3, 0, 4]
    stated = with_data(request(CELU, data, {"InputTensor": layout, "OutputTensor": layout}))
    (made,) = computed(service, stated | {"in_place": "InputTensor"})
    assert np.frombuffer(made, np.float32)[[0, 2, 5, 7]].tolist() == [1, 2, 3, 4]


def test_what_looks_ends_when_nobody_waits_for_it(service: Service) -> None:
    """Wherever a worker is in it."""
    ended: list[BaseException] = []

    def work(ticket: Ticket[None]) -> None:
        try:
            while True:
                look()
                time.sleep(0.001)
        except Cancelled as error:
            ended.append(error)
            raise

    async def main() -> None:
        with service.memory.open() as memory, pytest.raises(DeadlineExceeded):
            await service.run(work, memory)
        await until(lambda: service.pool.running == 0)

    asyncio.run(main())
    assert len(ended) == 1


def chain(count: int, kind: str) -> dict[str, Any]:
    """Nodes one after the other."""
    desc = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 2]}
    tensors = ["ATensor", "BTensor"] if kind == "GEMM" else ["InputTensor"]
    attributes = {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0} if kind == "GEMM" else {}
    node = {"Type": "OPERATOR", "Desc": {"Type": kind, **dict.fromkeys(tensors, desc), **attributes}}
    reads = [(number, tensor) for number in range(1, count) for tensor in range(len(tensors))]
    return {
        "Nodes": [node] * count,
        "InputEdges": [
            {"GraphInputIndex": 0, "ToNodeIndex": 0, "ToNodeInputIndex": place} for place in range(len(tensors))
        ],
        "IntermediateEdges": [
            {"FromNodeIndex": number - 1, "FromNodeOutputIndex": 0, "ToNodeIndex": number, "ToNodeInputIndex": tensor}
            for number, tensor in reads
        ],
        "OutputEdges": [{"FromNodeIndex": count - 1, "FromNodeOutputIndex": 0, "GraphOutputIndex": 0}],
    }


@pytest.mark.parametrize("kind", ["GEMM", "ELEMENT_WISE_EXP"])
def test_a_graph_of_many_nodes_is_looked_at_all_along(service: Service, kind: str) -> None:
    looked = itertools.count()
    graph = GraphRequest(validate(GraphDesc, chain(100, kind)), NEWEST, {}, {})
    steps = 100 if kind == "GEMM" else 1
    with service.memory.open() as memory:
        with looking(partial(next, looked)):
            compiled = service.compile(graph, memory, lambda: False)
        before = next(looked)
        with looking(partial(next, looked)):
            service.prepare_graph(compiled, "numpy")
    assert before >= 3 * 100 + steps
    assert next(looked) - before > steps - (steps == 1)


def test_idle_buffers_are_within_the_limit() -> None:
    """They go when requests need their place, and do not come back while they need it."""
    size = 1 << 20
    account = MemoryAccount(4 * size, 4 * size)
    with account.open() as share:
        buffers = [share.buffer(size) for _ in range(4)]
        buffers.clear()
        assert account.pool.idle_bytes == 0
    with account.open() as share:
        buffers = [share.buffer(size) for _ in range(3)]
        late = buffers.pop()
    buffers.clear()
    assert account.pool.idle_bytes == 2 * size
    with account.open() as share:
        share.take(3 * size)
        assert account.pool.idle_bytes == size
        del late
        assert account.pool.idle_bytes == size
    assert account.used == 0


def test_what_a_kernel_packs_is_charged() -> None:
    """A filter of 100,000 elements meets 16 times as many at a time, each of which is packed."""
    sizes = {"InputTensor": 150_000, "FilterTensor": 100_000}
    stated = {
        "Type": "CONVOLUTION",
        **{name: {"DataType": "FLOAT32", "Sizes": [1, 1, 1, size]} for name, size in sizes.items()},
        "Mode": "CROSS_CORRELATION",
        "Direction": "FORWARD",
        **{name: [1, 1] for name in ("Strides", "Dilations")},
        **{name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")},
        "GroupCount": 1,
    }
    made = Service(Settings(gpus="none", threads=1, max_memory_bytes=2 << 20))
    try:
        request = validate(DispatchRequest, {"operator": stated, "inputs": {}})
        prepared = at_once(made.prepare(request))
        data = {name: memoryview(bytearray(4 * size)) for name, size in sizes.items()}
        with made.memory.open() as memory, pytest.raises(LimitExceeded, match="max_memory_bytes"):
            made._bound(prepared, prepared.bind(data), memory)
        assert made.memory.used == 0
    finally:
        made.close()


def test_what_can_never_fit_is_told_from_what_does_not_fit_now() -> None:
    account = MemoryAccount(100)
    with account.open() as one, account.open() as other:
        one.take(60)
        with pytest.raises(MemoryExhausted, match="50 bytes wanted, 40 of max_memory_bytes free"):
            other.take(50)
        with pytest.raises(LimitExceeded, match="101, where max_memory_bytes allows 100"):
            other.take(101)
        with pytest.raises(LimitExceeded, match="101, where max_memory_bytes allows 100"):
            one.take(41)
        assert (one.held, other.held, account.used) == (60, 0, 60)
        other.take(40)
    assert account.used == 0


def tensors(**sizes: list[int]) -> dict[str, Any]:
    return {name: {"DataType": "FLOAT32", "Sizes": each} for name, each in sizes.items()}


NO_PADDING = {"StartPadding": [0, 0], "EndPadding": [0, 0]}
CONVOLUTION = {"Type": "CONVOLUTION", "Mode": "CROSS_CORRELATION", "Dilations": [1, 1], "GroupCount": 1}
CONVOLUTION |= NO_PADDING | {"OutputPadding": [0, 0]}
HEAVY: dict[str, Callable[[int], dict[str, Any]]] = {
    "counts": lambda n: {
        "Type": "AVERAGE_POOLING",
        "Strides": [1, 1],
        "WindowSize": [1, 2],
        "IncludePadding": False,
        "StartPadding": [0, 50_000 + n],
        "EndPadding": [0, 50_000],
        **tensors(InputTensor=[1, 1, 1, 1]),
    },
    "tables": lambda n: {
        "Type": "MAX_POOLING_GRAD",
        "Strides": [1, 1],
        "WindowSize": [101, 2],
        "Dilations": [1, 1],
        **NO_PADDING,
        **tensors(InputTensor=[1, 1, 300, 3 + n], InputGradientTensor=[1, 1, 200, 2 + n]),
    },
    "calls": lambda n: {
        "Type": "MAX_POOLING",
        "Strides": [1, 1],
        "WindowSize": [31, 31],
        **NO_PADDING,
        **tensors(InputTensor=[1, 2000, 64, 64 + n], OutputTensor=[1, 2000, 34, 34 + n]),
    },
    "zeros": lambda n: {
        **CONVOLUTION,
        "Direction": "FORWARD",
        "Strides": [1, 1],
        **tensors(InputTensor=[1, 1, 1, 1 + n], FilterTensor=[100_000, 1, 1, 1]),
    },
    "phases": lambda n: {
        **CONVOLUTION,
        "Direction": "BACKWARD",
        "Strides": [9, 9],
        **tensors(InputTensor=[1, 64, 64, 64 + n], FilterTensor=[64, 64, 9, 9]),
    },
    "outputs": lambda n: {
        "Type": "SPLIT",
        "Axis": 2,
        **tensors(InputTensor=[1, 1, 128, 500 + n]),
        "OutputTensors": [*tensors(each=[1, 1, 1, 500 + n]).values()] * 128,
    },
    "blocks": lambda n: {
        "Type": "LP_POOLING",
        "Strides": [1, 1],
        "WindowSize": [2, 2],
        "P": 2,
        **NO_PADDING,
        **tensors(InputTensor=[1, 1, 2000, 520 + n], OutputTensor=[1, 1, 1999, 519 + n]),
    },
}


@pytest.mark.parametrize("llvm", [False, True])
def test_what_is_kept_of_a_request_is_told(llvm: bool) -> None:
    """Caches count it. What formulas are made to is shared, and here when the first one is prepared."""
    made = Service(Settings(gpus="none", threads=2, llvm=llvm))
    try:
        for what, stated in HEAVY.items():

            def prepared(number: int, stated: Callable[[int], dict[str, Any]] = stated) -> Prepared:
                return at_once(made.prepare(validate(DispatchRequest, {"operator": stated(number), "inputs": {}})))

            kept = [prepared(number) for number in range(2)]
            gc.collect()
            tracemalloc.start()
            kept += [prepared(number) for number in range(2, 5)]
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] / 3
            tracemalloc.stop()
            assert taken < 1.2 * kept[-1].kept_bytes < 6 * max(taken, 16384), what
    finally:
        made.close()
