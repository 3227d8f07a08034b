"""The models that there are, by what clients call them: operators, models from files, and graphs that are kept."""

from collections.abc import Iterator
from typing import TypeAlias
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException

from app.contract.suggestions import did_you_mean
from app.engine.graph_documents import GRAPH_ID
from app.engine.graph_entries import Entry
from app.engine.graph_store import KeptGraph, UnknownGraph
from app.engine.service import Service
from app.http.core.graphs import kept_graph
from app.http.inference.file_models import FileModel
from app.http.inference.graph_models import GraphModel
from app.http.inference.model import VERSION
from app.http.inference.operator_models import OperatorModel
from app.models.repository.model import LoadedModel
from app.models.repository.repository import NotReady, Repository, UnknownModel
from app.operators.catalog import OPERATORS, find_operator
from app.operators.operator import PREFIX, Operator

Known: TypeAlias = type[Operator] | Entry | LoadedModel


class Models:
    """Those of a service, of whose names an operator's comes first and a graph's last. For the event loop's thread."""

    def __init__(self, service: Service, repository: Repository) -> None:
        self.repository = repository
        self._service = service
        service.graphs.is_model = repository.has
        self._operators = {operator: OperatorModel(service, operator) for operator in OPERATORS.values()}
        self._graphs: WeakKeyDictionary[KeptGraph, GraphModel] = WeakKeyDictionary()

    def all(self) -> Iterator[tuple[str, Known]]:
        """What each model is that is ready, a graph by its name if it has one that no model took since."""
        yield from OPERATORS.items()
        for name, _, each in self.repository.all():
            if isinstance(each, LoadedModel):
                yield name, each
        for entry in self._service.graphs.entries():
            called = entry.record.name
            yield called if called and not self.repository.has(called) else entry.record.id, entry

    def _names(self) -> Iterator[str]:
        """As clients write them."""
        for name, each in self.all():
            yield name.removeprefix(PREFIX).lower() if isinstance(each, type) else name

    async def known(self, name: str, version: str | None = None) -> Known:
        """What the model `name` is: an operator by its name or its short one in any case, a model of the folder, or a
        graph by id or name.

        Raises HTTPException 404, and 503 for a model that is not ready, UnknownGraph, and what `Service.run` raises.
        """
        found: Known | None = _operator(name)
        if found is None and self.repository.has(name):
            try:
                return await self.repository.find(name, version)
            except UnknownModel as error:
                raise HTTPException(404, str(error)) from None
            except NotReady as error:
                raise HTTPException(503, str(error)) from None
        if found is None:
            try:
                found = self._service.graphs.called(name)
            except UnknownGraph:
                if GRAPH_ID.fullmatch(name):  # to send it again makes it a model
                    raise
                meant = did_you_mean(name.removeprefix(PREFIX), self._names())
                raise HTTPException(
                    404, f"There is no model {name[:80]}; POST /v2/repository/index lists them.{meant}"
                ) from None
        _check_version(name, version)
        return found

    def operator(self, name: str, version: str | None = None) -> OperatorModel | None:
        """The model, if it is an operator, as most are: there is nothing to wait for. Raises HTTPException 404."""
        operator = _operator(name)
        if operator is None:
            return None
        _check_version(name, version)
        return self._operators[operator]

    async def find(self, name: str, version: str | None = None) -> OperatorModel | GraphModel | FileModel:
        """The model, whose graph is compiled by a worker if another process took it.

        Raises ContractError for a graph that is no model, and what `known` and `kept_graph` raise.
        """
        known = await self.known(name, version)
        if isinstance(known, LoadedModel):
            return FileModel(self._service, self.repository, known)
        if not isinstance(known, Entry):
            return self._operators[known]
        kept = await kept_graph(self._service, known.record.id)
        model = self._graphs.get(kept)
        if model is None:
            model = self._graphs[kept] = GraphModel(self._service, kept)
        return model


def _operator(name: str) -> type[Operator] | None:
    """The one that clients call `name`."""
    return find_operator(name) or find_operator(name.upper())


def _check_version(name: str, version: str | None) -> None:
    """Raises HTTPException 404 for one that operators and graphs do not have."""
    if version not in (None, VERSION):
        raise HTTPException(404, f"Model {name[:80]} has no version {str(version)[:80]}; there is {VERSION}.")
