"""What a refusal must be, whatever rule it speaks of."""

import json
import re
from typing import Any

from app.contract.tensors import TensorDesc
from app.contract.validation import validate
from app.contract.violations import ContractError, Violation


def refusals(document: dict[str, Any], *, output: bool = False) -> list[Violation]:
    """Everything that is wrong with a tensor descriptor, as an input or as an output."""
    try:
        return list(validate(TensorDesc, document).violations(output=output))
    except ContractError as error:
        return list(error.violations)


def check_wording(violation: Violation) -> None:
    """One sentence that names the field; what was given and what is allowed can be sent as JSON."""
    message = re.sub(r" Did you mean \S+\?$", "", violation.message)
    assert message.endswith("."), message
    assert not re.search(r"[.!?]\s", message), f"more than one sentence: {message}"
    assert "\n" not in message
    json.dumps([violation.given, violation.allowed], allow_nan=False)
    if violation.path:
        name = violation.path[-1]
        named = f"[{name}]" if isinstance(name, int) else name
        assert named in message or (name == "Type" and "DML_OPERATOR_" in message), message
