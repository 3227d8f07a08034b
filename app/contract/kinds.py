"""What requests are refused for: one name for each kind, which stays what it is."""

from enum import StrEnum


class Kind(StrEnum):
    """A kind of error. Clients find it in `type` of a problem, as /errors#tensor-sizes."""

    UNREADABLE = "unreadable"
    API_KEY = "api-key"
    NOT_ALLOWED = "not-allowed"
    RATE = "rate"
    NOT_FOUND = "not-found"
    METHOD = "method"
    NOT_ACCEPTABLE = "not-acceptable"
    TIMEOUT = "timeout"
    CONFLICT = "conflict"
    CHANGED = "changed"
    LIMIT = "limit"
    MEDIA_TYPE = "media-type"
    HEADER = "header"
    INTERNAL = "internal"
    UNSUPPORTED = "unsupported"
    BUSY = "busy"
    MEMORY = "memory"
    DRAINING = "draining"
    DEADLINE = "deadline"
    GRAPHS_FULL = "graphs-full"

    FIELD_MISSING = "field-missing"
    FIELD_UNKNOWN = "field-unknown"
    FIELD_TYPE = "field-type"
    NAME = "name"
    FEATURE_LEVEL = "feature-level"
    DATA_TYPE = "tensor-data-type"
    SIZES = "tensor-sizes"
    STRIDES = "tensor-strides"
    LAYOUT = "tensor-layout"
    DATA = "tensor-data"
    ATTRIBUTE = "attribute"
    IN_PLACE = "in-place"
    DEVICE = "device"
    GRAPH = "graph"
    OUTPUT = "output"

    @property
    def uri(self) -> str:
        """Of its place on the page that tells what it means."""
        return f"/errors#{self.value}"


MEANINGS = {
    Kind.UNREADABLE: "The body, the query or the file is not what its media type says.",
    Kind.API_KEY: "An API key is required: Authorization: Bearer KEY.",
    Kind.NOT_ALLOWED: "The API key is for other paths or methods.",
    Kind.RATE: "The API key's limit is reached; try again after Retry-After seconds.",
    Kind.NOT_FOUND: "There is nothing at this path, or no operator, graph or region of this name.",
    Kind.METHOD: "The method is not allowed at this path; Allow names those that are.",
    Kind.NOT_ACCEPTABLE: "Accept names no representation that the answer has.",
    Kind.TIMEOUT: "The request did not come in time, or the client hung up.",
    Kind.CONFLICT: "There is a graph with this name, what is asked for is there already, or another request undid it.",
    Kind.CHANGED: "What is there is not what If-Match names, or is what If-None-Match names.",
    Kind.LIMIT: "A limit of the service is exceeded; GET /v1/capabilities tells them.",
    Kind.MEDIA_TYPE: "Content-Type or Content-Encoding is none that is read here.",
    Kind.HEADER: "The request's header is over a limit.",
    Kind.INTERNAL: "The service failed; its log says why, under the request's id.",
    Kind.UNSUPPORTED: "HTTP has it, and this service has not.",
    Kind.BUSY: "All workers are busy; try again after Retry-After seconds.",
    Kind.MEMORY: "Others hold the memory that this request needs; try again after Retry-After seconds.",
    Kind.DRAINING: "The service is starting or shutting down; send the request elsewhere.",
    Kind.DEADLINE: "The dispatch was not done within deadline_seconds.",
    Kind.GRAPHS_FULL: "There is no room to keep the graph beside those that are kept.",
    Kind.FIELD_MISSING: "A field that is required is missing.",
    Kind.FIELD_UNKNOWN: "A field is not known here; allowed are those that are.",
    Kind.FIELD_TYPE: "A field is of another JSON type, or its text is not of the form, that it has to be.",
    Kind.NAME: "A name of an operator, a type, a level or another constant is not known; allowed are those that are.",
    Kind.FEATURE_LEVEL: "The operator does not exist at the feature level that judges the request.",
    Kind.DATA_TYPE: "A tensor's DataType is none that the operator takes there, at this level.",
    Kind.SIZES: "A tensor's Sizes are not those, or not as many, as the operator takes.",
    Kind.STRIDES: "A tensor's Strides lead beyond it, or make elements share their place.",
    Kind.LAYOUT: "Another member of a tensor's descriptor does not go with the rest.",
    Kind.DATA: "A tensor's data are missing, of another length than its descriptor says, or no data.",
    Kind.ATTRIBUTE: "An attribute of the operator has a value that it may not have.",
    Kind.IN_PLACE: "The output may not take this input's buffer.",
    Kind.DEVICE: "There is no such device.",
    Kind.GRAPH: "The graph's nodes and edges do not make a graph.",
    Kind.OUTPUT: "The output cannot be answered in the form that was asked for.",
}
"""What each means, in a sentence."""

_OF_TENSORS = {"DataType": Kind.DATA_TYPE, "Sizes": Kind.SIZES, "Strides": Kind.STRIDES}
_OF_REQUESTS = {
    "inputs": Kind.DATA,
    "in_place": Kind.IN_PLACE,
    "device": Kind.DEVICE,
    "graph": Kind.GRAPH,
    "Accept": Kind.OUTPUT,
    "outputs": Kind.OUTPUT,
    "output": Kind.OUTPUT,
}


def kind_at(path: tuple[str | int, ...]) -> Kind:
    """What a violation at `path` is of that says nothing else of itself."""
    fields = [part for part in path if isinstance(part, str)]
    if not fields:
        return Kind.FIELD_TYPE
    tensors = [place for place, part in enumerate(fields[:-1]) if part.endswith(("Tensor", "Tensors"))]
    if fields[0] == "inputs":
        return Kind.DATA
    if tensors:
        return _OF_TENSORS.get(fields[-1], Kind.LAYOUT)
    if fields[0] in _OF_REQUESTS and "Desc" not in fields:
        return _OF_REQUESTS[fields[0]]
    return Kind.ATTRIBUTE
