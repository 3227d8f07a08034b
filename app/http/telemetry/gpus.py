"""What NVML, the driver's management library, tells of GPUs: a thread asks now and then, since it may hang."""

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric

log = logging.getLogger("app")

SECONDS = 2.0
"""How often it is asked."""

_OLD_SECONDS = 15.0
"""What was told longer ago is not shown."""


class Gpu(Protocol):
    """A GPU that the service knows."""

    name: str
    out_of_service: str | None

    def bus_id(self) -> str:
        """Where it is on the PCI bus."""


@dataclass(frozen=True, slots=True)
class Told:
    """Of one GPU; None for what it does not tell."""

    since: float
    values: tuple[float | None, ...]


FAMILIES = {
    "dmlserve_gpu_utilization_ratio": "Part of the last moment in which a kernel ran on the GPU, whoever's.",
    "dmlserve_gpu_temperature_celsius": "Temperature of the GPU.",
    "dmlserve_gpu_memory_used_bytes": "Memory of the GPU that is taken, by whomever.",
    "dmlserve_gpu_memory_total_bytes": "Memory of the GPU.",
}


class Gpus:
    """Facts about `gpus`, for metrics. Asks nothing where there are none."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._told: dict[str, Told] = {}
        self._ended = threading.Event()

    def open(self) -> None:
        """Begin to ask."""
        if self._gpus:
            threading.Thread(target=self._watch, name="dmlserve-nvml", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()

    def metrics(self) -> Iterator[Metric]:
        """What was told last, and which GPUs are in service."""
        now = monotonic()
        for place, (name, text) in enumerate(FAMILIES.items()):
            family = GaugeMetricFamily(name, text, labels=["device"])
            for device, told in list(self._told.items()):
                value = told.values[place]
                if value is not None and now - told.since < _OLD_SECONDS:
                    family.add_metric([device], value)
            yield family
        serving = GaugeMetricFamily(
            "dmlserve_gpu_in_service", "1 if the GPU is used, 0 if it failed.", labels=["device"]
        )
        for gpu in self._gpus:
            serving.add_metric([gpu.name], gpu.out_of_service is None)
        yield serving

    def _watch(self) -> None:
        try:
            import pynvml  # noqa: PLC0415 - only with a GPU extra

            pynvml.nvmlInit()
        except Exception as error:
            log.info("NVML tells nothing of GPUs: %s", error)
            return
        while True:
            for gpu in self._gpus:
                try:
                    self._told[gpu.name] = _ask(pynvml, gpu.bus_id())
                except Exception as error:
                    log.debug("NVML tells nothing of %s: %s", gpu.name, error)
            if self._ended.wait(SECONDS):
                return


def _ask(nvml: Any, bus_id: str) -> Told:
    handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())

    def told(ask: Any, *arguments: Any) -> Any:
        try:
            return ask(handle, *arguments)
        except nvml.NVMLError:  # a part of a GPU has no utilisation of its own, say
            return None

    rates = told(nvml.nvmlDeviceGetUtilizationRates)
    memory = told(nvml.nvmlDeviceGetMemoryInfo)
    temperature = told(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    return Told(monotonic(), (rates and rates.gpu / 100, temperature, memory and memory.used, memory and memory.total))
