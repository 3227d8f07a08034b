"""What the environment has for the service that the service does not know."""

from collections.abc import Iterable

from app.contract.suggestions import did_you_mean
from app.settings import Settings

_PREFIX = Settings.model_config["env_prefix"]


def strange_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each of the variables `names` that looks like a setting's and is none; without values, which may
    be secrets."""
    known = [setting.upper() for setting in Settings.model_fields]
    return [
        f"The variable {name} is no setting's.{did_you_mean(rest, known).replace('mean ', f'mean {_PREFIX}')}"
        for name in sorted(names)
        if (rest := name.upper().removeprefix(_PREFIX)) not in known and name.upper().startswith(_PREFIX)
    ]
