"""Which models a folder has: NAME/VERSION/model.onnx, as Triton has them, and NAME.onnx."""

import logging
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from app.engine.graph_documents import GraphName
from app.models.repository.config import BadConfig

_MODEL, _CONFIG = "model.onnx", "config.pbtxt"

_NAME: TypeAdapter[str] = TypeAdapter(GraphName)


log = logging.getLogger("app")


class Found(NamedTuple):
    """A model in the folder: its file by version, in their order, and Triton's config if it has one."""

    versions: dict[str, Path]
    config: Path | None


def names_in(folder: Path) -> list[str]:
    """Of all models there, those with names that no model can have as well, unless nobody could read these
    or they are hidden."""
    names = {each.name for each in folder.iterdir() if each.is_dir() and _versions(each)}
    names |= {each.stem for each in folder.glob("*.onnx") if each.is_file()}
    unprintable = {each for each in names if not each.isprintable()}
    for name in sorted(unprintable):
        log.warning("Model %r cannot be loaded: its name cannot be printed.", name)
    return sorted(each for each in names - unprintable if not each.startswith("."))


def find(folder: Path, name: str) -> Found | None:
    """The model called `name`, if there is one. Raises BadConfig if it cannot have this name, or there are two."""
    if "/" in name or "\0" in name or name.startswith("."):
        return None
    own, plain = folder / name, folder / f"{name}.onnx"
    try:
        versions, is_plain = _versions(own), plain.is_file()
    except OSError:  # of a name that is too long
        return None
    if not versions and not is_plain:
        return None
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        raise BadConfig(f"A model's name {error.errors()[0]['msg']}.") from None
    if versions and is_plain:
        raise BadConfig(f"There are both {name}.onnx and a folder {name}.")
    if is_plain:
        return Found({"1": plain}, None)
    config = own / _CONFIG
    return Found(versions, config if config.is_file() else None)


def _versions(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    numbers = sorted(
        int(each.name)
        for each in folder.iterdir()
        if each.name.isascii() and each.name.isdigit() and each.name == str(int(each.name))
    )
    return {str(each): file for each in numbers if (file := folder / str(each) / _MODEL).is_file()}
