"""ONNX models as dispatchables. This is the seam where the importer comes in."""

from app.contract.validation import abbreviate
from app.contract.violations import Path, refused
from app.models.dxdispatch.document import OnnxDispatchable
from app.models.dxdispatch.execution import Dispatchable, Run


def compile_onnx(given: OnnxDispatchable, name: str, path: Path, run: Run) -> Dispatchable:
    """The ONNX model that the dispatchable `name`, which is at `path`, names. Raises ContractError.

    What it returns binds by the model's input and output names, takes `shape` of a binding, makes what is "deferred"
    (`Held.deferred`, `data_type`, `sizes`, `data`), and computes by `run.execute`.
    """
    raise refused(
        (*path, "type"),
        f"Dispatchable {abbreviate(name)} is an ONNX model, {abbreviate(given.sourcePath)}; which is not run yet.",
        "onnx",
        "an operator or dmlSerializedGraph",
    )
