"""The sizes at which the service begins to do something else, in bytes: the one list of them that the fuzzer has.

They are numbers, since the fuzzer is to outlast the constants of the code.
"""

THRESHOLDS = (
    1 << 10,  # from here on loops compiled by LLVM compute outputs of single bytes
    1 << 14,  # of a body, in which its tensor data have to begin
    1 << 15,  # of a request, from which it may land in memory of its own
    1 << 16,  # pieces joined rather than sent in a call of their own; buffers kept for the next request; a pause
    1 << 17,  # what Linux takes at first for a connection that is not read
    3 << 16,  # of tensor data that are decoded or encoded as base64 at a time
    1 << 18,  # of an answer that the kernel takes at once; of a document without its tensor data
    3 << 17,  # of a body that is read at once; of an answer that is joined
    1 << 19,  # of the buffer that requests are read into
    (1 << 19) + (1 << 11),  # of that buffer with what is left free before it
    1 << 20,  # of a document that a thread decodes; of the first buffer of a body whose length is unknown
    1 << 21,  # of a huge page
    1 << 23,  # of a document like an earlier one that a thread decodes; of the second buffer of a body
)

WAITING = (1 << 18, 3 << 17, 1 << 19, 1 << 20)
"""Those of an answer that waits, at least in part, for a client that reads late."""

TEXT = 1 << 17
"""The largest one for documents without tensor data but with numbers, which take long to write and to read."""

HEAVY = 1 << 21
"""From here on a request takes so long that few are sent."""

NEAR = 8
"""How far from a threshold sizes are chosen, at most."""

MEASURES = ("data", "body", "message", "answer")
"""What has the size: a tensor's data, a request's body, all of the request, all of the answer."""
