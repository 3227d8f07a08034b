"""Members of documents: those that there are, and those that may be left out."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Document(BaseModel):
    """What clients send, or a part of it. It has no other members, nor any of another type, and stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Lenient(Document):
    """A document whose members may be null where they may be left out: null is what generated clients send for that."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        fields = cls.__pydantic_fields__
        return {
            name: each
            for name, each in value.items()
            if each is not None or name not in fields or fields[name].is_required()
        }
