"""tritonclient[http], NVIDIA's own client, against a running server: it uses the service unchanged."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as asyncio_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, shared_memory

from app.operators.catalog import OPERATORS
from tests.conftest import RunningServer, running_server
from tests.inference.wire import datatype
from tests.messages import Array

MODEL = "activation_parameterized_relu"
X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)
SLOPE = np.full((2, 3), 0.5, np.float32)
RESULT = np.array([[-2, -1, 0], [1, 2, 4]], np.float32)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("triton") / "log", "--shared-memory") as running:
        yield running


@pytest.fixture(scope="module")
def client(sharing: RunningServer) -> Iterator[Any]:
    opened = triton.InferenceServerClient(sharing.url.removeprefix("http://"), concurrency=4)
    yield opened
    opened.close()


def tensor(name: str, array: Array, binary: bool = True) -> Any:
    assert np_to_triton_dtype(array.dtype) == datatype(array)
    made = triton.InferInput(name, list(array.shape), datatype(array))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def tensors(binary: bool = True) -> list[Any]:
    return [tensor("InputTensor", X, binary), tensor("SlopeTensor", SLOPE, binary)]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_json_and_binary(client: Any, binary: bool, asked: bool) -> None:
    outputs = [triton.InferRequestedOutput("OutputTensor", binary_data=binary)] if asked else None
    result = client.infer(MODEL, tensors(binary), outputs=outputs, request_id="7")
    np.testing.assert_array_equal(result.as_numpy("OutputTensor"), RESULT)
    assert result.get_response()["id"] == "7"
    assert ("data" in result.get_output("OutputTensor")) == (asked and not binary)


def test_mixed_forms_types_and_parameters(client: Any) -> None:
    mixed = [tensor("InputTensor", X, binary=False), tensor("SlopeTensor", SLOPE)]
    np.testing.assert_array_equal(client.infer(MODEL, mixed).as_numpy("OutputTensor"), RESULT)
    for dtype in (np.float16, np.int8, np.int16, np.int32):
        x: Array = X.astype(np.dtype(dtype))
        inputs = [tensor("InputTensor", x), tensor("SlopeTensor", x)]
        expected = np.where(x >= 0, x, x * x)
        np.testing.assert_array_equal(client.infer(MODEL, inputs).as_numpy("OutputTensor"), expected)
    parameters = {"Exponent": 2.0, "ScaleBias.Scale": 0.5, "ScaleBias.Bias": 1.0, "feature_level": "5_0"}
    result = client.infer("element_wise_constant_pow", [tensor("InputTensor", X)], parameters=parameters)
    np.testing.assert_array_equal(result.as_numpy("OutputTensor"), (X * 0.5 + 1) ** 2)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compression_both_ways(client: Any, algorithm: str, binary: bool) -> None:
    result = client.infer(
        MODEL,
        tensors(binary),
        outputs=[triton.InferRequestedOutput("OutputTensor", binary_data=binary)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(result.as_numpy("OutputTensor"), RESULT)


def test_several_at_a_time(client: Any) -> None:
    waiting = [
        client.async_infer(MODEL, [tensor("InputTensor", X * n), tensor("SlopeTensor", SLOPE)], request_id=str(n))
        for n in range(1, 9)
    ]
    for n, each in enumerate(waiting, 1):
        result = each.get_result()
        np.testing.assert_array_equal(result.as_numpy("OutputTensor"), RESULT * n)
        assert result.get_response()["id"] == str(n)


@pytest.mark.parametrize("forms", [(True, True), (True, False), (False, True), (False, False)])
def test_several_outputs(client: Any, forms: tuple[bool, bool]) -> None:
    """In the order and the form that each is asked for in."""
    names = ["OutputIndexTensor", "OutputValueTensor"]
    outputs = [triton.InferRequestedOutput(name, binary_data=form) for name, form in zip(names, forms, strict=True)]
    parameters = {"Axis": 1, "K": 2}
    result = client.infer("top_k", [tensor("InputTensor", X)], outputs=outputs, parameters=parameters)
    np.testing.assert_array_equal(result.as_numpy("OutputValueTensor"), [[0, -2], [4, 2]])
    np.testing.assert_array_equal(result.as_numpy("OutputIndexTensor"), [[2, 1], [2, 1]])
    assert [each["name"] for each in result.get_response()["outputs"]] == names
    one = client.infer("top_k", [tensor("InputTensor", X)], outputs=outputs[:1], parameters=parameters)
    assert [each["name"] for each in one.get_response()["outputs"]] == names[:1]


def test_outputs_that_there_are_not(client: Any) -> None:
    outputs = [triton.InferRequestedOutput("OutputTensor"), triton.InferRequestedOutput("OutputMeanTensor")]
    with pytest.raises(InferenceServerException, match="has no output OutputMeanTensor; outputs are OutputTensor"):
        client.infer(MODEL, tensors(), outputs=outputs)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no POSIX shared memory")
def test_shared_memory(client: Any) -> None:
    key = f"/dmlserve-test-{uuid.uuid4()}"
    handle = shared_memory.create_shared_memory_region("both", key, 96)
    try:
        shared_memory.set_shared_memory_region(handle, [X, SLOPE])
        client.register_system_shared_memory("both", key, 96)
        assert client.get_system_shared_memory_status() == [{"name": "both", "key": key, "offset": 0, "byte_size": 96}]
        inputs = [triton.InferInput(name, [2, 3], "FP32") for name in ("InputTensor", "SlopeTensor")]
        for position, each in enumerate(inputs):
            each.set_shared_memory("both", 24, 24 * position)
        output = triton.InferRequestedOutput("OutputTensor")
        output.set_shared_memory("both", 24, 48)
        client.infer(MODEL, inputs, outputs=[output])
        found = shared_memory.get_contents_as_numpy(handle, np.float32, [2, 3], 48)
        np.testing.assert_array_equal(found, RESULT)
        client.unregister_system_shared_memory("both")
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="There is no region both"):
            client.infer(MODEL, inputs)
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(handle)


def test_what_the_server_tells(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("none")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata(MODEL)
    assert [each["name"] for each in metadata["inputs"]] == ["InputTensor", "SlopeTensor"]
    assert "DML_OPERATOR_ACTIVATION_CELU" in [each["name"] for each in client.get_model_repository_index()]
    counted = client.get_inference_statistics("element_wise_constant_pow")["model_stats"][0]["inference_stats"]
    before = counted["success"]["count"]
    client.infer("element_wise_constant_pow", [tensor("InputTensor", X)], parameters={"Exponent": 2.0})
    counted = client.get_inference_statistics("element_wise_constant_pow", "1")["model_stats"][0]["inference_stats"]
    assert counted["success"]["count"] == before + 1


def test_errors_are_read(client: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"Sizes of InputTensor of .* has 2 dimensions") as caught:
        client.infer(MODEL, tensors(), parameters={"feature_level": "1_0"})
    assert caught.value.status() == "400"
    for asked in ({"priority": 1}, {"sequence_id": 5}, {"timeout": 5}):
        with pytest.raises(InferenceServerException, match=f"{next(iter(asked))} is no parameter of"):
            client.infer(MODEL, tensors(), **asked)
    with pytest.raises(InferenceServerException, match="classification is not a field here"):
        client.infer(MODEL, tensors(), outputs=[triton.InferRequestedOutput("OutputTensor", class_count=2)])
    with pytest.raises(InferenceServerException, match="There is no model none"):
        client.infer("none", tensors())


def test_its_client_for_asyncio(sharing: RunningServer) -> None:
    """It asks for gzip, since its HTTP library does, and reads what comes as it is."""

    async def main() -> None:
        async with asyncio_client.InferenceServerClient(sharing.url.removeprefix("http://")) as opened:
            assert await opened.is_server_ready()
            assert len((await opened.get_inference_statistics())["model_stats"]) >= len(OPERATORS)
            assert (await opened.get_model_metadata("multihead_attention1"))["name"] == "multihead_attention1"
            assert (await opened.get_model_config("multihead_attention1"))["name"] == "multihead_attention1"
            assert len(await opened.get_model_repository_index()) >= len(OPERATORS)
            for coding in (None, "gzip", "deflate"):
                results = await asyncio.gather(
                    *[opened.infer(MODEL, tensors(), response_compression_algorithm=coding) for _ in range(8)]
                )
                for result in results:
                    np.testing.assert_array_equal(result.as_numpy("OutputTensor"), RESULT)
            with pytest.raises(InferenceServerException, match="There is no model nobody"):
                await opened.infer("nobody", tensors())

    asyncio.run(main())
