"""Wiring: settings in, application or running server out."""

import asyncio
import fcntl
import functools
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from app import __version__, logs
from app.apart import done_apart
from app.devices.cuda import mps
from app.devices.device import Cancelled
from app.devices.placement import try_gpus
from app.engine.graph_entries import Entries, SharedEntries
from app.engine.service import DeadlineExceeded, Draining, Service
from app.engine.workers import QueueFull
from app.environment import strange_variables
from app.http.core import bodies, openapi
from app.http.core.asgi import Application
from app.http.core.auth import authenticating
from app.http.core.cors import sharing
from app.http.core.exchange import Handler
from app.http.core.kept import telling
from app.http.core.keys import Keys
from app.http.core.problems import refusing
from app.http.core.routes import routed
from app.http.core.watched import Watched
from app.http.inference import endpoints, shared_memory_routes
from app.http.inference import routes as inference
from app.http.inference.shared_memory import most_regions
from app.http.native import dispatch, dxdispatch, files, graphs
from app.http.native import routes as native
from app.http.native.requests import DispatchReader
from app.http.server.connection import connections
from app.http.server.limit import ConnectionLimit, raise_descriptor_limit, room_for_connections
from app.http.server.machine import has_gpu, overcommitted, suited
from app.http.server.moving import Moving
from app.http.server.process import Process
from app.http.server.proxies import forwarded
from app.http.server.rehearsal import rehearse, rehearsing
from app.http.server.server import Server, UnixSocket, listen
from app.http.server.tls import HANDSHAKES, Certificate, certificate_of
from app.http.server.transfers import NO_THREADS, Transfers
from app.http.server.workers import Supervisor
from app.http.telemetry import operations, tracing
from app.http.telemetry.access_log import AccessLog
from app.http.telemetry.metrics import Counts, Metrics
from app.http.telemetry.requests import observing
from app.http.telemetry.slots import Slots
from app.http.telemetry.tracing import Tracing
from app.http.web import docs, errors, playground, reference
from app.memory import huge_pages
from app.memory.neighbours import Neighbour, Neighbours
from app.models.repository.repository import Repository
from app.models.repository.repository import check as check_models
from app.models.repository.switches import SharedSwitches, Switches
from app.settings import Settings, Unusable
from app.signals import Signals, end

log = logging.getLogger("app")

SWITCH_SECONDS = 0.0005
"""How long the event loop waits for the interpreter while another thread, which compiles a graph, has it. It waits a
few times for each request, and by default ten times as long each."""

FULL_COLLECTIONS = 1000
"""After so many collections of what is not quite new, Python's collector looks through all that was made since the
start, for which it stops all threads: 30 to 80 ms where many graphs were compiled. By default after 10, which is every
second of compiling. What it finds are a hundred small objects of each graph."""

_ENDING_SECONDS = 1.0
"""How long a worker without its parent waits until the GPUs' service has been told to end. It is a client itself."""

_TENDED_SECONDS = 0.5
"""How often is looked for graphs that are idle, or were dropped by another worker, and for models that one was asked to
load or to let go of."""


def create_app(
    settings: Settings,
    service: Service,
    connections: ConnectionLimit,
    keys: int = 0,
    number: int = 0,
    slots: Slots | None = None,
    switches: Switches | None = None,
) -> FastAPI:
    """All routes. The application opens `service` when it starts and closes it when it ends.

    It is worker `number` of those that share `slots`, if there are several. `keys` is how many API keys there are, for
    the log. `switches` are those of the models that several workers have. Raises Unusable.
    """
    repository = Repository(service, switches)
    metrics = Metrics(service, connections, slots, number)
    logged = settings.access_log and logging.getLogger("app.request").isEnabledFor(logging.INFO)
    access_log = AccessLog(as_json=logs.is_json(settings)) if logged else None

    traces = Tracing(settings.otlp_endpoint, settings.trace_ratio) if settings.otlp_endpoint else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.open()
        await bodies.start_touching()
        await asyncio.to_thread(repository.open)
        metrics.gpus.open()
        tasks = [asyncio.create_task(each) for each in (metrics.tell(), _tend(service), _follow(repository))]
        # What there is now stays. To look through it at each full collection would stop all requests for some 50 ms.
        gc.collect()
        gc.freeze()
        devices = ", ".join(device.info().description for device in service.devices.values())
        log.info("dmlserve %s is ready on %s; API keys: %s", __version__, devices, keys or "none")
        try:
            yield
            for task in tasks:
                task.cancel()
            metrics.gpus.close()
            service.close()
            repository.close()
            if traces:
                traces.close()
        except asyncio.CancelledError:
            log.warning("The service was told twice to end: it does so at once, and what still ran is cut off")
        finally:
            if access_log:
                access_log.flush()

    app = FastAPI(
        title="dmlserve",
        version=__version__,
        description="DirectML's operator contract as an HTTP microservice. Each operator by itself, with its formula, "
        "curve and support table, is at [/operators](operators).",
        license_info={"name": "MIT", "identifier": "MIT"},
        openapi_url=None,
        openapi_tags=[
            {"name": "native", "description": "Dispatch of operators and what they are capable of."},
            {"name": "inference", "description": "The Open Inference Protocol (KServe V2), with Triton's extensions."},
            {"name": "operations", "description": "Health and metrics."},
        ],
        lifespan=lifespan,
    )
    app.state.memory = service.memory
    app.state.metrics = metrics
    app.state.access_log = access_log
    app.state.tracing = traces
    app.state.inference = inferences = endpoints.InferEndpoint(service, metrics, repository)
    reader = DispatchReader(service)
    app.router.routes += [
        *dispatch.routes(reader),
        *dxdispatch.routes(service, metrics.dispatched),
        *files.routes(reader),
        *graphs.routes(service),
        *endpoints.routes(inferences),
        *native.routes(service),
        *inference.routes(service, inferences),
        *shared_memory_routes.routes(service, inferences.regions),
        *operations.routes(service, metrics),
    ]
    openapi.install(app)
    if settings.docs:
        drawing = min(service.devices.values(), key=lambda device: device.kind != "cpu")
        app.router.routes += [
            *openapi.routes(app),
            *playground.routes(drawing),
            *docs.routes(),
            *errors.routes(),
            *reference.routes(drawing),
        ]
    return app


def answering(app: FastAPI) -> Handler:
    """What answers each request by `app`, for everyone and unseen. It raises what is refused."""
    return telling(routed(app.routes), app.state.memory)


def handler_of(app: FastAPI, settings: Settings, keys: Keys) -> Handler:
    """The same, and what happens before and after. Without `keys` it is for everyone."""
    handler = answering(app)
    if keys or settings.cors_origins:
        handler = refusing(handler)  # problems are answers to them, too
    if keys:
        handler = authenticating(handler, keys)
    if settings.cors_origins:
        handler = sharing(handler, settings.cors_origins)
    return observing(handler, app.state.metrics, app.state.access_log, app.state.tracing)


def serve(settings: Settings, signals: Signals) -> NoReturn:
    """Serve until an ending signal, finish what runs, end the process: with 0 if all went well, otherwise with 1.

    Raises Unusable.
    """
    why = ""
    can_share = settings.mps and settings.gpus != "none" and has_gpu()
    if not settings.workers:
        count, why = suited(settings, gpus_are_shared=can_share and mps.is_there())
        settings = settings.model_copy(update={"workers": count})
    keys = Keys(settings.api_keys.get_secret_value(), settings.api_keys_file)
    check_models(settings)
    tracing.check(settings)
    certificate = certificate_of(settings)
    unix = UnixSocket(settings.uds) if settings.uds else None
    sockets = [unix.socket] if unix else listen(settings.host, settings.port)
    try:
        if settings.require_gpu or settings.names_gpus:
            _try_gpus(settings)
        logs.configure(settings)
        raise_descriptor_limit()
        shared = _SharedFolder() if settings.workers > 1 else None
    except Unusable:
        for each in sockets:
            each.close()
        if unix:
            unix.remove()
        raise
    for sentence in strange_variables(os.environ):
        log.warning(sentence)
    if why:
        log.info("Runs in %d process%s: %s", settings.workers, "es" if settings.workers > 1 else "", why)
    if more := overcommitted(settings):
        log.warning(more)
    slots = Slots(settings.workers + 1)  # one for this process, if others are the workers
    end_seconds = settings.drain_seconds + settings.shutdown_seconds

    watched = [Watched([keys.file], keys.reload)] if keys.file else []
    if certificate:
        watched.append(Watched(certificate.files, certificate.reload))

    def reload() -> None:
        """On SIGHUP, in every process; it must end none."""
        try:
            logs.reopen()
            for each in watched:
                each.read()
        except Exception:
            log.exception("What SIGHUP asks for failed")

    neighbours = Neighbours(settings.workers) if settings.workers > 1 else None
    folder = shared.path if shared else None
    gpu_sharing = mps.start(folder / "mps", settings.gpu_numbers) if folder and can_share else None
    supervisor = os.getpid()

    def work(number: int, signals: Signals) -> bool:
        entries = SharedEntries(folder, settings.workers, number) if folder else None
        switches = SharedSwitches(folder / "models") if folder else None
        neighbour = neighbours.member(number) if neighbours else None
        make = functools.partial(_server, settings, keys, certificate, slots, number, entries, switches, neighbour)
        went_well = Process(make, signals, reload, end_seconds, watched).run(sockets)
        if folder and os.getppid() != supervisor:  # it was killed, and will not
            if gpu_sharing:
                gpu_sharing.end(seconds=_ENDING_SECONDS)
            shutil.rmtree(folder, ignore_errors=True)
        return went_well

    if shared:
        logs.count_dropped_in(Counts(slots.own(settings.workers)).log_lines_dropped.numbers[()])
        went_well = Supervisor(settings.workers, work, signals, reload, end_seconds, [*watched, shared]).run(sockets)
    else:
        went_well = work(0, signals)
    if gpu_sharing:
        gpu_sharing.end()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    if unix:
        unix.remove()
    end(0 if went_well else 1)


def _try_gpus(settings: Settings) -> None:
    """`try_gpus` in a process of its own, so that the service says in one sentence what is missing. Raises Unusable."""

    def trouble() -> str:
        try:
            try_gpus(settings)
        except Unusable as error:
            return str(error)
        return ""

    said = done_apart(trouble)
    if said != "":
        raise Unusable(said or "The search for GPUs failed.")


class _SharedFolder:
    """A folder of this user's alone, for the graphs that all workers have.

    Folders that nobody changed for days are removed where temporary files are, but not locked ones (tmpfiles.d(5)).
    """

    def __init__(self) -> None:
        """Raises Unusable."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix="dmlserve-graphs-"))
            self._lock()
        except OSError as error:
            raise Unusable(f"Several workers need a folder for temporary files, which TMPDIR names: {error}") from None

    def look(self) -> None:
        """Make it again if somebody removed it, and with it all that was kept."""
        with suppress(OSError):  # who wants a graph kept is told of it
            if self.path.exists():
                return
            self.path.mkdir(0o700)
            self._lock()
            log.warning("The folder %s was removed, and with it the graphs that were kept; it is made again", self.path)

    def _lock(self) -> None:
        fcntl.flock(os.open(self.path, os.O_RDONLY), fcntl.LOCK_SH)  # until this process and all workers are gone


async def _tend(service: Service) -> None:
    """Have the kept graphs and the memory of GPUs looked after, until cancelled."""
    while True:
        await asyncio.sleep(_TENDED_SECONDS)
        try:
            await asyncio.to_thread(service.graphs.tend)
        except DeadlineExceeded:  # who keeps them together does not answer, which the log has: another time
            pass
        except Exception:
            log.exception("The kept graphs cannot be looked after")
        try:
            await asyncio.to_thread(service.placement.tend)
        except Exception:
            log.exception("The memory of GPUs cannot be looked after")


async def _follow(repository: Repository) -> None:
    """Have models loaded and let go of as other processes were asked to, until cancelled."""
    while True:
        await asyncio.sleep(_TENDED_SECONDS)
        try:
            await repository.follow()
        except (Cancelled, DeadlineExceeded, Draining, QueueFull):  # another time, or by whoever asks for a model
            pass
        except Exception:
            log.exception("What other processes were asked of models cannot be done")


def _transfers(settings: Settings, service: Service) -> Transfers:
    if not (settings.transfer_threads and service.loops):
        return NO_THREADS
    return Transfers(settings.transfer_threads, Moving(service.loops.functions))


def _server(
    settings: Settings,
    keys: Keys,
    certificate: Certificate | None,
    slots: Slots,
    number: int,
    entries: Entries | None,
    switches: Switches | None,
    neighbour: Neighbour | None,
) -> Server:
    """The server of one process. `entries` are the graphs that several keep, `switches` those of their models, and it
    is one `neighbour` of those that share GPUs."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
    service = Service(settings, entries, neighbour)
    others = (most_regions() if settings.shared_memory else 0) + (settings.max_graphs if entries else 0)
    others += HANDSHAKES if certificate else 0
    others += settings.transfer_threads  # each has a descriptor of its own for the connection that it is lent
    limit = ConnectionLimit(room_for_connections(settings.max_connections, others))
    app = create_app(settings, service, limit, len(keys), number, slots, switches)
    logs.count_dropped_in(app.state.metrics.log_lines_dropped)
    handler = handler_of(app, settings, keys)
    config = uvicorn.Config(
        Application(handler, app),
        host=settings.host,
        port=settings.port,
        uds=settings.uds or None,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )
    transfers = _transfers(settings, service)
    memory, served = service.memory, forwarded(handler, config.forwarded_allow_ips)
    config.http = connections(served, settings, limit, memory, transfers)
    config.load()
    config.ssl = certificate.context if certificate else None

    async def rehearse_all() -> None:
        connect = connections(rehearsing(refusing(answering(app))), settings, limit, memory, transfers)
        await rehearse(lambda: connect(config, ServerState(), {}), app.state.inference.expected)
        huge_pages.collapse()

    return Server(config, service.drain, settings.drain_seconds, settings.header_seconds, rehearse_all)
