"""Which models a folder has: NAME/VERSION/model.onnx, as Triton has them, and NAME.onnx.

As there, model.onnx may be a folder with the file of that name and its external data, and a config.pbtxt may name
another file (default_model_filename), and which versions are served (version_policy): all of them, if it does not.
"""

import logging
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from app.engine.graph_documents import GraphName
from app.models.repository.config import POLICY, BadConfig, parse, policy_of, text_in, text_of
from app.models.repository.text_format import Message

_MODEL, _CONFIG = "model.onnx", "config.pbtxt"

_FILE_NAME = "default_model_filename"

_NAME: TypeAdapter[str] = TypeAdapter(GraphName)

log = logging.getLogger("app")


class Found(NamedTuple):
    """A model in the folder: its file by version, in their order, and Triton's config if it has one."""

    versions: dict[str, Path]
    config: Path | None


def names_in(folder: Path) -> list[str]:
    """Of all models there, those with names that no model can have as well, unless nobody could read these
    or they are hidden. Raises OSError."""
    names = {each.name for each in folder.iterdir() if _is_folder_of_model(each)}
    names |= {each.stem for each in folder.glob("*.onnx") if each.is_file()}
    unprintable = {each for each in names if not each.isprintable()}
    for name in sorted(unprintable):
        log.warning("Model %r cannot be loaded: its name cannot be printed.", name)
    return sorted(each for each in names - unprintable if not each.startswith("."))


def find(folder: Path, name: str) -> Found | None:
    """The model called `name`, if there is one. Raises BadConfig if it cannot have this name, there are two, its file
    is in no version's folder, or its config cannot be read or asks for versions that are not there."""
    if "/" in name or name.startswith("."):
        return None
    try:
        return _found(folder, name)
    except OSError:  # of a name that is too long, or what is gone meanwhile
        return None


def _found(folder: Path, name: str) -> Found | None:
    own, plain = folder / name, folder / f"{name}.onnx"
    is_folder, is_plain = _is_meant(own), plain.is_file()
    if not is_folder and not is_plain:
        return None
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        raise BadConfig(f"A model's name {error.errors()[0]['msg']}.") from None
    if is_folder and is_plain:
        raise BadConfig(f"There are both {name}.onnx and a folder {name}.")
    if is_plain:
        return Found({"1": plain}, None)
    config, file = _config(own), own / _CONFIG
    versions = _versions(own, _file_name(config))
    if not versions:
        where = ", ".join(map(str, _numbers(own))) or f"a folder of {name} that has a number for its name, as 1"
        raise BadConfig(f"There is no file {_file_name(config)} in {where}{_backend(config)}.")
    return Found(_chosen(versions, config), file if file.is_file() else None)


def _is_folder_of_model(folder: Path) -> bool:
    try:
        return _is_meant(folder)
    except OSError as error:  # as of lost+found, which is root's, where a volume is mounted
        log.warning("There are no models in the folder %r: %s.", folder.name, error.strerror)
        return False


def _is_meant(folder: Path) -> bool:
    """Whether a model is meant to be there. What it lacks is told when it is loaded."""
    return folder.is_dir() and ((folder / _CONFIG).is_file() or bool(_numbers(folder)))


def _config(folder: Path) -> Message:
    """Empty where there is none. Raises BadConfig."""
    file = folder / _CONFIG
    if not file.is_file():
        return {}
    try:
        return parse(text_in(file))
    except OSError as error:
        raise BadConfig(f"config.pbtxt cannot be read: {error.strerror}.") from None


def _file_name(config: Message) -> str:
    name = text_of(config, _FILE_NAME, "") or _MODEL
    if "/" in name or "\0" in name or name in (".", ".."):
        raise BadConfig(f"{_FILE_NAME} in config.pbtxt is {name[:40]!r}, which is no file of a version's folder.")
    return name


def _backend(config: Message) -> str:
    """What is to be told of one that does not run ONNX models."""
    named = text_of(config, "backend", "") or text_of(config, "platform", "")
    is_other = named not in ("", "onnxruntime", "onnxruntime_onnx")
    return f", and config.pbtxt is for {named[:40]}; what is served here are ONNX models" if is_other else ""


def _versions(folder: Path, file_name: str) -> dict[str, Path]:
    files = {str(each): folder / str(each) / file_name for each in _numbers(folder)}
    return {each: file / _MODEL if file.is_dir() else file for each, file in files.items() if _is_model(file)}


def _numbers(folder: Path) -> list[int]:
    """Of versions, whether they have a model or not."""
    return sorted(
        int(each.name)
        for each in folder.iterdir()
        if each.name.isascii() and each.name.isdigit() and each.name == str(int(each.name)) and each.is_dir()
    )


def _is_model(file: Path) -> bool:
    return file.is_file() or (file / _MODEL).is_file()


def _chosen(versions: dict[str, Path], config: Message) -> dict[str, Path]:
    """Those that are served. Raises BadConfig."""
    policy = policy_of(config)
    if policy.latest is not None:
        return dict([*versions.items()][-policy.latest :])
    if policy.specific is None:
        return versions
    missing = [each for each in policy.specific if each not in versions]
    if missing or not policy.specific:
        raise BadConfig(
            f"{POLICY} in config.pbtxt asks for {', '.join(missing) or 'no version'}; there is {', '.join(versions)}."
        )
    return {each: file for each, file in versions.items() if each in policy.specific}
