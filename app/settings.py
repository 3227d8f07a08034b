"""Every setting, once: environment variables DMLSERVE_* and the flags of `dmlserve serve` come from here."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def processors() -> int:
    """Those that this process may run on, or, in a container that may use them for a part of the time, as many as that
    comes to."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
    except (OSError, ValueError):  # there is no such limit
        return count
    return min(count, max(round(quota / period), 1))


def _transfer_threads() -> int:
    """On few processors threads that copy take what computes; those that compute leave half of many to them."""
    cpus = processors()
    return min(cpus // 2, 8) if cpus >= 4 else 0


MOST_BATCH = 256
"""Rows that are ever run together."""

_MOST = (1 << 63) - 1
"""Of a setting that is a whole number: what JSON, in which limits are told, is read with."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\sA-Z/?#@,*]+")
_LIMITS = ("queue_depth", "deadline_seconds", "header_seconds", "body_seconds", "send_seconds", "graph_seconds")
_NO_LIMITS = ("max_batch", "max_delay_us")


class Unusable(Exception):
    """A setting that the service cannot start with: says why in a sentence, for who starts it."""


class Settings(BaseSettings):
    """Sizes in bytes, times in seconds."""

    model_config = SettingsConfigDict(env_prefix="DMLSERVE_", extra="ignore", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")
    uds: str = Field("", description="Unix domain socket to listen on, instead of host and port.")
    tls_certificate: str = Field(
        "", description="PEM file of the certificate, with which HTTPS is served; read again on SIGHUP and on changes."
    )
    tls_key: str = Field("", description="PEM file of the certificate's private key, if that is not in the same file.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity that is logged."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="One JSON object a line, or text for people; auto is text on a terminal, else JSON."
    )
    log_file: str = Field("", description="File to log to instead of standard error; opened again on SIGHUP.")
    access_log: bool = Field(True, description="Log each request.")
    docs: bool = Field(True, description="Serve the pages /, /operators, /errors and /docs, and /openapi.json.")

    otlp_endpoint: str = Field("", description="URL of an OpenTelemetry collector, by OTLP over HTTP, for traces.")
    trace_ratio: float = Field(
        0.01, ge=0, le=1, description="Part of the requests that are traced; those with a traceparent follow that."
    )

    api_keys: SecretStr = Field(
        SecretStr(""), description="API keys, separated by commas. Without these and the file, no key is asked for."
    )
    api_keys_file: str = Field(
        "",
        description="File with an API key on each line, and what it may ask for; read again on SIGHUP and on changes.",
    )
    cors_origins: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="Origins whose pages may call the service, separated by commas; * for all."
    )

    models: str = Field("", description="Folder of ONNX models to serve: NAME.onnx, or NAME/VERSION/model.onnx.")
    warm: str = Field(
        "",
        description="Sizes to compile models for at the start: name=1x3x224x224, or name=input:1x128,other:1x128; "
        "several are separated by semicolons.",
    )
    max_model_bytes: int = Field(2 * GIB - 1, ge=1 * KIB, description="File of a model, with its external data.")
    max_model_graphs: int = Field(
        128,
        ge=1,
        le=4096,
        description="Graphs that models from files are kept compiled as, each for some sizes of inputs.",
    )

    max_batch: int = Field(
        1,
        ge=1,
        le=MOST_BATCH,
        description="Rows that requests to one model from a file are run together up to, where they differ along their "
        "first dimension only; 1: each by itself. A model's config.pbtxt comes first.",
    )
    max_delay_us: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="Microseconds that a request may wait for others to be run with, though a worker is free.",
    )

    workers: int = Field(
        0,
        ge=0,
        le=256,
        description="Processes that share the port, each with threads, a queue and limits of its own; 0: as many as "
        "suit the machine.",
    )
    shared_memory: bool = Field(
        False,
        description="Let clients of the Open Inference Protocol use this user's POSIX shared memory, and memory on "
        "GPUs by its handles. For one worker.",
    )
    transfer_threads: int = Field(
        default_factory=_transfer_threads,
        ge=0,
        le=64,
        description="Threads that receive and send large bodies; 0, or without LLVM: the event loop does.",
    )
    threads: int = Field(default_factory=processors, ge=1, le=1024, description="Worker threads that run dispatches.")
    llvm: bool = Field(
        True, description="Compile loops for the CPU where NumPy is slower. Their results may differ in the last bits."
    )
    gpus: str = Field(
        "all",
        pattern=r"^(all|none|\d{1,3}(,\d{1,3})*)$",
        description="GPUs to use: all, none, or their numbers separated by commas, all of which must be there.",
    )
    require_gpu: bool = Field(False, description="Do not start without a GPU.")
    mps: bool = Field(
        True,
        description="Have several workers use a GPU at the same time, by a Multi-Process Service of NVIDIA's that is "
        "started for them, if nvidia-cuda-mps-control is there; else they take turns.",
    )
    crossover_elements: int = Field(
        0, ge=0, description="Elements from which `auto` takes a GPU; 0: where it is done first, by an estimate."
    )
    staging_bytes: int = Field(
        192 * MIB,
        ge=4 * MIB,
        description="Pinned memory for each GPU, and as much of its own, that other tensors are moved through.",
    )
    pinned_bytes: int = Field(
        1 * GIB, ge=0, description="Buffers of requests and answers that GPUs may read and write by themselves."
    )
    kernel_cache: str = Field(
        "", description="Folder to keep compiled kernels in, or none to keep none; if unset, the user's cache folder."
    )
    compile_ahead: bool = Field(True, description="Compile GPU kernels of common operators before taking dispatches.")
    queue_depth: int = Field(64, ge=0, le=65536, description="Dispatches that may wait for a worker; more get 503.")
    deadline_seconds: float = Field(30, gt=0, description="Longest time from a dispatch's admission to its result.")
    header_seconds: float = Field(10, gt=0, description="Longest time to receive a request's header.")
    body_seconds: float = Field(60, gt=0, description="Longest time to receive a request's body.")
    send_seconds: float = Field(
        30, gt=0, description="Longest time in which a client takes less than 64 KiB of an answer that waits for it."
    )
    keep_alive_seconds: int = Field(30, ge=1, description="How long an idle connection is kept.")
    drain_seconds: float = Field(
        0, ge=0, description="After SIGTERM, how long to go on as before, though not ready, before the port is closed."
    )
    shutdown_seconds: int = Field(30, ge=1, description="After that, how long running requests may take to finish.")

    max_connections: int = Field(
        4096, ge=1, description="Connections of a process at one time; on more, only health and metrics are answered."
    )
    max_header_bytes: int = Field(32 * KIB, ge=1 * KIB, description="Request line and header fields.")
    max_body_bytes: int = Field(256 * MIB, ge=1 * KIB, description="Request body.")
    max_structure_bytes: int = Field(
        256 * KIB, ge=1 * KIB, description="Request body without its tensor data: names, numbers, punctuation."
    )
    max_depth: int = Field(32, ge=8, le=256, description="Nesting of arrays and objects in a request body.")
    max_graph_nodes: int = Field(8192, ge=1, le=65536, description="Nodes of one graph.")
    max_graph_structure_bytes: int = Field(
        4 * MIB,
        ge=1 * KIB,
        description="As max_structure_bytes, of a request that has a graph kept, and of an ONNX file in a request.",
    )
    max_graphs: int = Field(64, ge=1, le=1024, description="Graphs that are kept; more get 507.")
    max_graph_bytes: int = Field(
        1 * GIB,
        ge=1 * KIB,
        description="Tensors, packed matrices and descriptions of all kept graphs, in each process; more get 507.",
    )
    graph_seconds: float = Field(0, ge=0, description="Graphs that nobody used for so long are dropped; 0: never.")
    max_numbers: int = Field(
        2 * MIB, ge=1, description="Elements of a request's tensors that are given as JSON numbers."
    )
    max_tensor_bytes: int = Field(256 * MIB, ge=4, description="Buffer of one tensor, input or output.")
    max_memory_bytes: int = Field(
        4 * GIB,
        ge=1 * MIB,
        description="Bodies, tensors, answers and what kernels take beside them, of all requests; more get 503.",
    )
    idle_buffer_bytes: int = Field(
        768 * MIB, ge=0, description="Memory kept for the next large requests, within max_memory_bytes."
    )

    @property
    def names_gpus(self) -> bool:
        """Whether `gpus` are certain ones."""
        return self.gpus not in ("all", "none")

    @property
    def gpu_numbers(self) -> list[int] | None:
        """Theirs, if they are certain ones."""
        return [*dict.fromkeys(map(int, self.gpus.split(",")))] if self.names_gpus else None

    @classmethod
    def is_limit(cls, name: str) -> bool:
        """Whether a client may run into this setting, so that the capabilities show it."""
        return name in _LIMITS or (name.startswith("max_") and name not in _NO_LIMITS)

    @field_validator("*")
    @classmethod
    def _is_told_in_json(cls, value: Any) -> Any:
        if isinstance(value, int) and value > _MOST:
            raise PydanticCustomError("too_large", "it should be less than or equal to {most}", {"most": _MOST})
        return value

    @field_validator("host")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not value.strip():
            raise PydanticCustomError("no_host", "it names no address; give 127.0.0.1, or 0.0.0.0 to listen on all")
        return value

    @field_validator("shared_memory")
    @classmethod
    def _is_of_one_process(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("workers", 2) > 1:
            raise PydanticCustomError("one_worker", "regions are registered with one process, so give one worker")
        return value

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [origin.strip() for origin in value.split(",") if origin.strip()] if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise PydanticCustomError(
                    "no_origin",
                    "{origin} is no origin as browsers send it; give https://page.example or http://localhost:3000, "
                    "without a path and in lower case, or * for all",
                    {"origin": origin},
                )
        return value
