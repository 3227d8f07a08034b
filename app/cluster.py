"""The service on many machines, by Ray Serve: `serve run app.cluster:application`.

A replica is a process of Ray's with the CPUs and the GPU that Ray granted it. Ray's own HTTP servers receive requests,
its controller starts, watches and replaces replicas; all else is done by the same handler as everywhere. Ray reads a
body before anybody judges it: what stands in front of a cluster should bound bodies (docker/haproxy/haproxy.cfg does).
"""

import threading
import time
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from app import __version__
from app.engine.cluster_entries import ClusterEntries, Keeper, KeeperSilent
from app.engine.graph_entries import Record
from app.engine.service import Service, State
from app.http.core.asgi import Application
from app.http.core.keys import Keys
from app.http.core.watched import SECONDS, Watched
from app.http.server.limit import ConnectionLimit
from app.main import create_app, handler_of
from app.settings import Settings, Unusable

NAMESPACE = "dmlserve"
"""Of the keepers, among Ray's actors."""

ALONE_SECONDS = 600.0
"""So long a keeper waits for a replica, before it ends and the graphs with it."""

_SERVES = frozenset(
    {
        *("host", "port", "workers", "max_connections", "keep_alive_seconds", "drain_seconds", "shutdown_seconds"),
        *("max_header_bytes", "header_seconds", "send_seconds"),
        *("log_level", "log_format", "log_file", "access_log", "shared_memory"),
    }
)
"""Settings of what Ray Serve does in place of `dmlserve serve`, and of what several machines cannot have."""


class GraphKeeper(Keeper):
    """The keeper as an actor of Ray's. Documents are in Ray's object store, which spills to disk if it must."""

    _is_watched = False

    async def add(self, token: str, record: Record, document: Any) -> bool:
        return await super().add(token, record, [ray.put(document)])

    async def end_if_alone(self, seconds: float = ALONE_SECONDS) -> None:
        """End for good if there was no replica for so long. To ask again changes nothing."""
        if self._is_watched:
            return
        self._is_watched = True
        await self.alone(seconds)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


class RayCall:
    """Implements `KeeperCall` by Ray: the keeper is the actor called `name`, made on the head if there is none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._keeper: Any = None

    def __call__(self, method: str, *arguments: object, seconds: float) -> Any:
        try:
            keeper = self._keeper = self._keeper or self._find()
            # Not ray.get, which complains of event loops.
            answer = getattr(keeper, method).remote(*arguments).future().result(seconds)
            return answer[0].future().result(seconds) if method == "document" and answer else answer
        except (RayError, NotInTime, ValueError) as error:
            self._keeper = None
            raise KeeperSilent from error

    def _find(self) -> Any:
        keeper = (
            ray.remote(GraphKeeper)
            .options(
                name=self._name,
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",  # replicas come and go
                max_restarts=-1,
                num_cpus=0,
                resources={"node:__internal_head__": 0.001},  # without which there is no cluster
            )
            .remote()
        )
        keeper.end_if_alone.remote()
        return keeper


class Replica:
    """One of the processes that answer requests, with the settings that `given` names beside the environment's."""

    def __init__(self, given: dict[str, Any]) -> None:
        context = ray.get_runtime_context()
        granted: dict[str, Any] = {"threads": max(1, int(context.get_assigned_resources().get("CPU", 1)))}
        if not context.get_accelerator_ids().get("GPU"):
            granted["gpus"] = "none"  # Ray hides GPUs from those only that were granted some
        stated = Settings(**given).model_fields_set
        granted = {name: value for name, value in granted.items() if name not in stated}
        settings = Settings(**granted | given, access_log=False)  # Ray has its own
        keys = Keys(settings.api_keys.get_secret_value(), settings.api_keys_file)
        watched = Watched([keys.file], keys.reload)  # from here on: a service takes long to make
        # Another version may know other things of graphs, so it has a keeper of its own.
        name = f"graphs of {serve.get_replica_context().app_name} {__version__}"
        self._entries = ClusterEntries(RayCall(name), settings.deadline_seconds)
        self._service = Service(settings, self._entries)
        app = create_app(settings, self._service, ConnectionLimit(), len(keys))
        self._application = Application(handler_of(app, settings, keys), app)
        if keys.file:
            threading.Thread(target=_look, args=(watched,), name="dmlserve-reload", daemon=True).start()

    def __serve_build_asgi_app__(self) -> Application:
        """What Ray Serve calls with each request."""
        return self._application

    def check_health(self) -> None:
        """Ray Serve replaces a replica whose check raises: where /health/ready would answer 503."""
        if self._service.state is not State.READY:
            raise RuntimeError(f"The replica is {self._service.state}.")

    def __del__(self) -> None:
        if hasattr(self, "_entries"):
            self._entries.close()


def _look(watched: Watched) -> None:
    """For a thread of its own, as long as the process is there: files may hang."""
    while True:
        time.sleep(SECONDS)
        watched.look()


DEPLOYMENT = serve.deployment(
    name="dmlserve",
    num_replicas="auto",
    autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8},
    max_ongoing_requests=64,
    ray_actor_options={"num_cpus": 1},
    health_check_period_s=5,
    health_check_timeout_s=5,
    graceful_shutdown_timeout_s=40,
    graceful_shutdown_wait_loop_s=0.5,
)(serve.ingress()(Replica))
"""A replica for each CPU, as many as there is work for. A Serve config file says otherwise (docker/ray/serve.yaml)."""


def application(arguments: dict[str, Any]) -> serve.Application:
    """For `serve run` and Serve config files, whose `args` are settings by their names.

    Settings without a value there are taken from the environment of each replica. Raises Unusable.
    """
    for name in arguments:
        if name not in Settings.model_fields:
            raise Unusable(f"There is no setting {name}.")
        if name in _SERVES:
            raise Unusable(f"The setting {name} means nothing to a replica; Ray Serve has its own.")
    Settings(**arguments)  # raises now what would be raised by each replica
    bound: serve.Application = DEPLOYMENT.bind(arguments)
    return bound
