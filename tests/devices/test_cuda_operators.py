"""The example of every operator on a real GPU against NumPy."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.engine.capabilities import example
from app.memory.arrays import numpy_type
from app.operators.catalog import OPERATORS
from tests.devices.test_numpy_device import never
from tests.gpu import first_gpu
from tests.operators.descriptors import compiled, example_data


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATORS)
def test_example_of_an_operator(name: str) -> None:
    gpu = first_gpu()
    work = compiled(example(OPERATORS[name])["operator"])
    data = example_data(name)
    results = []
    with ThreadPoolExecutor(2) as helpers:
        for device in (NumpyDevice(helpers, 2), gpu):
            outputs = {key: memoryview(bytearray(desc.data_bytes)) for key, desc in work.outputs.items()}
            inputs = [memoryview(bytearray(data[key])) for key in work.inputs]
            device.prepare(work).dispatch(inputs, [*outputs.values()], never)
            results.append(outputs)
    for key, desc in work.outputs.items():
        dtype = numpy_type(desc.DataType) if desc.DataType.bits >= 8 else np.dtype(np.uint8)
        expected, actual = (np.frombuffer(each[key], dtype) for each in results)
        if dtype.kind == "f":
            near = 2e-3 if dtype == np.float16 else 2e-5
            np.testing.assert_allclose(actual, expected, rtol=near, atol=1e-6)
        else:
            np.testing.assert_array_equal(actual, expected)
