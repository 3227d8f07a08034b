"""The models that there are, by what clients call them: operators, and graphs that are kept."""

from typing import TypeAlias
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException

from app.engine.graph_documents import GRAPH_ID
from app.engine.graph_entries import Entry
from app.engine.graph_store import KeptGraph, UnknownGraph
from app.engine.service import Service
from app.http.core.graphs import kept_graph
from app.http.inference.graph_models import GraphModel
from app.http.inference.model import VERSION
from app.http.inference.operator_models import OperatorModel
from app.operators.catalog import OPERATORS, find_operator
from app.operators.operator import Operator

Known: TypeAlias = type[Operator] | Entry


class Models:
    """Those of a service. For the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._operators = {operator: OperatorModel(service, operator) for operator in OPERATORS.values()}
        self._graphs: WeakKeyDictionary[KeptGraph, GraphModel] = WeakKeyDictionary()

    def all(self) -> dict[str, Known]:
        """What each model is, a graph by its name if it has one."""
        graphs = {entry.record.name or entry.record.id: entry for entry in self._service.graphs.entries()}
        return {**OPERATORS, **graphs}

    def known(self, name: str, version: str = VERSION) -> Known:
        """What the model `name` is: an operator by its name or its short one in any case, or a graph by id or name.

        Raises HTTPException 404, UnknownGraph.
        """
        found: Known | None = find_operator(name) or find_operator(name.upper())
        if found is None:
            try:
                found = self._service.graphs.called(name)
            except UnknownGraph:
                if GRAPH_ID.fullmatch(name):  # to send it again makes it a model
                    raise
                raise HTTPException(
                    404, f"There is no model {name[:80]}; POST /v2/repository/index lists them."
                ) from None
        if version != VERSION:
            raise HTTPException(404, f"Model {name[:80]} has no version {version[:80]}; there is {VERSION}.")
        return found

    async def find(self, name: str, version: str = VERSION) -> OperatorModel | GraphModel:
        """The model, whose graph is compiled by a worker if another process took it.

        Raises ContractError for a graph that is no model, and what `known` and `kept_graph` raise.
        """
        known = self.known(name, version)
        if not isinstance(known, Entry):
            return self._operators[known]
        kept = await kept_graph(self._service, known.record.id)
        model = self._graphs.get(kept)
        if model is None:
            model = self._graphs[kept] = GraphModel(self._service, kept)
        return model
