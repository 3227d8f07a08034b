"""The models of a folder that are loaded, and what of them is compiled: bounded, the least recently used goes."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from app.contract.violations import ContractError, Hresult, Violation
from app.devices.device import Cancelled
from app.engine.dispatch import Work
from app.engine.graph_store import room_to
from app.engine.graphs import CompiledGraph
from app.engine.service import Service
from app.engine.workers import Ticket
from app.memory.accounts import LimitExceeded, MemoryExhausted
from app.models.onnx.errors import NotSupported, WrongSizes
from app.models.onnx.reading import Missing, Unreadable
from app.models.repository import layout
from app.models.repository.config import BadConfig
from app.models.repository.model import CacheKey, LoadedModel, SizedModel, SizesOfAll, batch_sizes, read
from app.models.repository.switches import LocalSwitches, Switches
from app.models.repository.warm import Warm, parse_warm
from app.settings import Settings, Unusable

log = logging.getLogger("app")

_REFUSED = (BadConfig, LimitExceeded, MemoryExhausted, NotSupported, Unreadable, WrongSizes)
"""Why a model cannot be loaded."""

_MOST_TRIES = 3

Rehearse: TypeAlias = Callable[[LoadedModel, SizesOfAll, Ticket[None]], None]
"""Has a model that is compiled for these sizes asked for the first time, by a worker. Raises LimitExceeded,
MemoryExhausted, Cancelled."""


class UnknownModel(Exception):
    """The folder has no model of this name, or it has not this version. The text is a sentence."""


class NotReady(Exception):
    """The model is there, and cannot be used. The text says why, in a sentence."""


class Overtaken(Exception):
    """The model was unloaded by somebody else while it was loaded. The text is a sentence."""


class Failed(NamedTuple):
    """A version that could not be loaded."""

    reason: str


class _Entry(NamedTuple):
    """A model as of one of its `generation`s, the newest version last."""

    generation: int
    versions: Mapping[str, LoadedModel | Failed]
    failed: Failed | None = None
    """Why one of them is what it was before it was to be loaded again."""


class Repository:
    """The models in the folder of the settings, of this process. Without a folder there are none.

    `find` and what it calls are for the event loop's thread; `lookup` is for any.
    """

    def __init__(self, service: Service, switches: Switches | None = None) -> None:
        """`switches` are those that several processes share. Raises Unusable."""
        settings = service.settings
        self._service = service
        self._switches = LocalSwitches() if switches is None else switches
        self._entries: dict[str, _Entry] = {}
        self._sized: OrderedDict[tuple[LoadedModel, SizesOfAll], SizedModel] = OrderedDict()
        self._keys: WeakKeyDictionary[CompiledGraph, tuple[LoadedModel, SizesOfAll]] = WeakKeyDictionary()
        self._compiling: dict[tuple[LoadedModel, SizesOfAll], asyncio.Task[SizedModel]] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._lock = Lock()
        check(settings)
        self.rehearse: Rehearse | None = None
        """Set by who serves the models."""
        self._warm: list[Warm] = parse_warm(settings.warm)
        self._folder = Path(settings.models) if settings.models else None

    def open(self) -> None:
        """Load all models, and compile those whose sizes are known. It takes long."""
        for name in layout.names_in(self._folder) if self._folder else []:
            state = self._switches.get(name)
            self._entries[name] = _Entry(state.generation, self._read(name, Ticket()) if state.is_loaded else {})

    def close(self) -> None:
        """Let go of all models."""
        for name in list(self._entries):
            self._forget(name)

    def all(self) -> Iterator[tuple[str, str, LoadedModel | Failed]]:
        """Each version of each model that is loaded or could not be."""
        for name, entry in sorted(self._entries.items()):
            if not entry.versions:
                yield name, "", Failed("it is not loaded")
            for version, each in entry.versions.items():
                yield name, version, each

    def has(self, name: str) -> bool:
        """Whether a model is called so, loaded or not."""
        return name in self._entries or self._switches.get(name).generation > 0

    def known(self, name: str, version: str | None) -> LoadedModel:
        """The model as far as it is loaded, by default its newest version. Raises UnknownModel, NotReady."""
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownModel(f"There is no model {name[:80]}.")
        if not entry.versions:
            raise NotReady(f"Model {name} is not loaded; POST /v2/repository/models/{name}/load loads it.")
        if version is not None and version not in entry.versions:
            raise UnknownModel(f"Model {name} has no version {version[:80]}; there is {', '.join(entry.versions)}.")
        if version is None:
            ready = [each for each, one in entry.versions.items() if isinstance(one, LoadedModel)]
            version = (ready or list(entry.versions))[-1]
        found = entry.versions[version]
        if isinstance(found, Failed):
            raise NotReady(f"Model {name} is not ready: {found.reason}")
        return found

    async def find(self, name: str, version: str | None) -> LoadedModel:
        """The same, loaded again first if that was asked for, of this process or another one. Raises like `known`, and
        what `Service.run` raises."""
        await self._update(name)
        return self.known(name, version)

    def compiled_sizes(self) -> list[tuple[LoadedModel, SizesOfAll]]:
        """Which models are compiled, and for which sizes of their inputs."""
        with self._lock:
            return list(self._sized)

    def ready(self, name: str) -> list[LoadedModel]:
        """Its versions that are."""
        return [*self._loaded_versions(name).values()]

    def versions(self, name: str) -> list[str]:
        """Their numbers."""
        return [each.version for each in self.ready(name)]

    async def load(self, name: str) -> None:
        """Read a model, again if it is loaded already: what then fails stays as it was.

        Raises UnknownModel, NotReady, Overtaken, StoreFull, and what `Service.run` raises.
        """
        if self._folder is None or not self._is_there(name):
            raise self._missing(name)
        self._switch(name, is_loaded=True)
        await self._update(name)
        entry = self._entries.get(name)
        if entry and not entry.versions:
            raise Overtaken(f"Another request unloaded model {name} while this one loaded it; load it again.")
        if entry and entry.failed:
            raise NotReady(f"Model {name} is served as it was, and cannot be loaded again: {entry.failed.reason}")
        self.known(name, None)

    async def unload(self, name: str) -> None:
        """Let go of a model. Raises UnknownModel, StoreFull."""
        if not self.has(name):
            raise self._missing(name)
        self._switch(name, is_loaded=False)
        await self._update(name)

    async def follow(self) -> None:
        """Load what was asked for of other processes, and let go of what they let go of: not only when a request comes,
        since nobody asks for a model that was let go of, and the file may be another one by then.

        Raises what `Service.run` raises.
        """
        for name in list(self._entries):
            await self._update(name)

    def _missing(self, name: str) -> UnknownModel:
        if self._folder is None:
            return UnknownModel("There is no folder of models; have the service started with --models.")
        return UnknownModel(f"There is no model {name[:80]} in the folder.")

    def _switch(self, name: str, *, is_loaded: bool) -> None:
        with room_to(f"tell other workers of model {name}"):
            self._switches.set(name, is_loaded=is_loaded)

    def lookup(self, model: LoadedModel, sizes: SizesOfAll) -> SizedModel | None:
        """The model for these sizes if it is compiled; it is in use from now on."""
        with self._lock:
            found = self._sized.get((model, sizes))
            if found:
                self._sized.move_to_end((model, sizes))
            return found

    def use(self, graph: Work) -> SizedModel | None:
        """The model that `lookup` found before, if it is still kept; it is in use from now on."""
        key = self._keys.get(graph) if isinstance(graph, CompiledGraph) else None
        return self.lookup(*key) if key else None

    async def compiled(self, model: LoadedModel, sizes: SizesOfAll) -> SizedModel:
        """The model for these sizes, compiled by a worker, and for all who want it at once only once.

        Raises ContractError, LimitExceeded, MemoryExhausted and what `Service.run` raises.
        """
        found = self.lookup(model, sizes)
        if found:
            return found
        task = self._compiling.get((model, sizes))
        if task is None:
            task = asyncio.create_task(self._compile_in_worker(model, sizes))
            self._compiling[model, sizes] = task
            task.add_done_callback(lambda done: self._compiled(model, sizes, done))
        return await asyncio.shield(task)

    async def _compile_in_worker(self, model: LoadedModel, sizes: SizesOfAll) -> SizedModel:
        def work(ticket: Ticket[None]) -> SizedModel:
            return self.compile(model, sizes, ticket.cancelled)

        with self._service.memory.open() as memory:
            return await self._service.run(work, memory)

    def _compiled(self, model: LoadedModel, sizes: SizesOfAll, done: "asyncio.Task[SizedModel]") -> None:
        self._compiling.pop((model, sizes), None)
        if not done.cancelled():
            done.exception()  # or nobody might have looked at it

    def compile(self, model: LoadedModel, sizes: SizesOfAll, cancelled: Callable[[], bool]) -> SizedModel:
        """For a worker. What was not used for longest makes room, for its number and for its memory.

        Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled.
        """
        while True:
            try:
                made = model.compile(sizes, self._service, cancelled)
                break
            except (NotSupported, WrongSizes) as error:
                message = f"{model.called} cannot be compiled for these sizes: {error}"
                raise ContractError([Violation(("inputs",), message)], Hresult.E_INVALIDARG) from None
            except MemoryExhausted:
                with self._lock:
                    if not self._sized:
                        raise
                    self._drop_oldest()
        with self._lock:
            if model.is_closed:  # meanwhile: it is for who waits for it, and for nobody else
                made.close()
                return made
            known = self._sized.setdefault((model, sizes), made)
            if known is not made:
                made.close()
            self._keys[known.graph] = (model, sizes)
            while len(self._sized) > self._service.settings.max_model_graphs:
                self._drop_oldest()
        return known

    def _drop_oldest(self) -> None:
        (model, _), oldest = self._sized.popitem(last=False)
        self._drop(model, oldest)

    @staticmethod
    def _drop(model: LoadedModel, sized: SizedModel) -> None:
        model.cache_key = CacheKey()
        sized.close()

    async def _update(self, name: str) -> None:
        """Load or unload what was asked for, by whichever process."""
        for _ in range(_MOST_TRIES):
            state, entry = self._switches.get(name), self._entries.get(name)
            if state.generation == (entry.generation if entry else 0):
                return
            task = self._loading.get(name)
            if task is None:
                task = asyncio.create_task(self._reload(name, state.generation, is_loaded=state.is_loaded))
                self._loading[name] = task
                task.add_done_callback(lambda done: self._loaded(name, done))
            await asyncio.shield(task)

    def _loaded(self, name: str, done: "asyncio.Task[None]") -> None:
        self._loading.pop(name, None)
        if not done.cancelled():
            done.exception()

    async def _reload(self, name: str, generation: int, *, is_loaded: bool) -> None:
        versions: Mapping[str, LoadedModel | Failed] = {}
        if is_loaded:
            with self._service.memory.open() as memory:
                versions = await self._service.run(lambda ticket: self._read(name, ticket), memory)
        entry, before = _Entry(generation, versions), self._loaded_versions(name)
        if is_loaded and before:
            entry = _with_what_stays(entry, before)
        self._entries[name] = entry
        for version, each in before.items():
            if entry.versions.get(version) is not each:
                self._close(each)

    def _read(self, name: str, ticket: Ticket[None]) -> dict[str, LoadedModel | Failed]:
        """All versions, compiled for the sizes that are known."""
        assert self._folder
        try:
            found = layout.find(self._folder, name)
        except BadConfig as error:
            return {"1": _failed(name, error)}
        if found is None:
            return {"1": Failed("its file is gone.")}
        return {
            version: self._read_version(name, version, file, found, ticket) for version, file in found.versions.items()
        }

    def _read_version(
        self, name: str, version: str, file: Path, found: layout.Found, ticket: Ticket[None]
    ) -> LoadedModel | Failed:
        model: LoadedModel | None = None
        try:
            model = read(name, version, file, found.config, self._service, ticket.cancelled)
            for sizes in self._wanted(model):
                self._prepare(model, sizes, ticket)
                self._compile_batches(model, sizes, ticket)
            return model
        except Cancelled:
            raise
        except (*_REFUSED, ContractError) as error:
            failed = _failed(f"{name}:{version}", error)
        except Exception:  # the fault is ours, and is to stop no other model
            log.exception("Model %s:%s cannot be loaded", name, version)
            failed = Failed("it cannot be loaded, by a fault that the log has.")
        if model is not None:
            self._close(model)
        return failed

    def _compile_batches(self, model: LoadedModel, sizes: SizesOfAll, ticket: Ticket[None]) -> None:
        """What requests of these sizes are run together as. Without it they are run one by one."""
        try:
            for rows in model.batching.sizes if model.batching else ():
                self._prepare(model, batch_sizes(sizes, rows), ticket)
        except (*_REFUSED, ContractError) as error:
            log.warning("Batches of model %s cannot be compiled: %s", model.called, error)

    def _wanted(self, model: LoadedModel) -> Iterator[SizesOfAll]:
        """Raises WrongSizes."""
        if not model.is_free:
            yield model.own_sizes
        for warm in self._warm:
            if warm.model == model.name:
                yield warm.of(model.ports)

    def _prepare(self, model: LoadedModel, sizes: SizesOfAll, ticket: Ticket[None]) -> None:
        """Have it ready: its first request is to take no longer than the others. Raises what `compile` does."""
        sized = self.compile(model, sizes, ticket.cancelled)
        sized.prepared["auto"] = self._service.prepare_graph(sized.graph, "auto")
        if self.rehearse is None:
            return
        try:
            self.rehearse(model, sizes, ticket)
        except (LimitExceeded, MemoryExhausted) as error:
            log.warning("The first request of model %s will take longer than the others: %s", model.called, error)
        except Cancelled:
            raise
        except Exception:  # the fault is ours, and is to stop no other model
            log.exception("Model %s fails on zeros", model.called)

    def _is_there(self, name: str) -> bool:
        assert self._folder
        try:
            return layout.find(self._folder, name) is not None
        except BadConfig:
            return True

    def _forget(self, name: str) -> None:
        loaded = self._loaded_versions(name)
        self._entries.pop(name, None)
        for each in loaded.values():
            self._close(each)

    def _loaded_versions(self, name: str) -> dict[str, LoadedModel]:
        entry = self._entries.get(name)
        given = entry.versions if entry else {}
        return {version: each for version, each in given.items() if isinstance(each, LoadedModel)}

    def _close(self, model: LoadedModel) -> None:
        with self._lock:
            for key in [each for each in self._sized if each[0] is model]:
                self._drop(model, self._sized.pop(key))
            model.close()


def _with_what_stays(entry: _Entry, before: Mapping[str, LoadedModel]) -> _Entry:
    """A model that was loaded again, with what there was of each version that fails now, or of all if nothing of it is
    left: as Triton has it, who serves a model goes on."""
    failed = {version: each for version, each in entry.versions.items() if isinstance(each, Failed)}
    stays = before if len(failed) == len(entry.versions) else {v: before[v] for v in failed if v in before}
    if not stays:
        return entry
    reason = next((failed[version] for version in stays if version in failed), next(iter(failed.values())))
    others = {} if stays is before else entry.versions
    return _Entry(entry.generation, {**others, **stays}, reason)


def check(settings: Settings) -> None:
    """Raises Unusable if there can be no repository like that."""
    warm = parse_warm(settings.warm)
    if not settings.models:
        if warm:
            raise Unusable("To warm a model there must be a folder of models; give --models.")
        return
    folder = Path(settings.models)
    if not folder.is_dir():
        raise Unusable(f"There is no folder {settings.models} to take models from.")
    if find_spec("onnx") is None:
        raise Unusable(str(Missing()))
    try:
        names = layout.names_in(folder)
    except OSError as error:
        raise Unusable(f"The folder {settings.models} cannot be read: {error.strerror}.") from None
    for each in warm:
        if each.model not in names:
            raise Unusable(f"There is no model {each.model} to warm; there are {', '.join(names) or 'none'}.")


def _failed(called: str, error: Exception) -> Failed:
    log.warning("Model %s cannot be loaded: %s", called, error)
    return Failed(str(error))
