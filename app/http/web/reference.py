"""/operators: every operator on one page, made from the operator classes. The page is whole: it loads nothing."""

import asyncio
import re
import shlex
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import Field
from starlette.routing import BaseRoute

from app import __version__
from app.contract.constants import NEWEST, DataType, FeatureLevel
from app.devices.device import Device
from app.engine.capabilities import (
    OperatorFilter,
    SupportRow,
    describe,
    example_for_people,
    field_kind,
    paste,
    select,
    span,
    support_groups,
)
from app.engine.curves import Curve, curve
from app.http.core.exchange import Reply, Request
from app.http.core.queries import read_query
from app.http.core.routes import Given, pages
from app.http.web import plots
from app.http.web.files import answer_file
from app.operators.catalog import OPERATORS
from app.operators.operator import Operator

MOST = 200
"""Characters to search for."""

_PAGES = "pages"


class PageFilter(OperatorFilter):
    """Which operators the page shows."""

    search: Annotated[str, Field(max_length=MOST)] = ""


@dataclass(frozen=True, slots=True)
class Section:
    """What the page has of one operator. `text` is what is searched."""

    operator: type[Operator]
    name: str
    text: str
    html: Markup


def routes(device: Device) -> list[BaseRoute]:
    """That of the page, made when it is first asked for, its curves computed by `device`. It follows from the program
    alone, not from settings or requests."""
    making = asyncio.Lock()
    made = cache(partial(_made, device))
    found = pages()

    @found.get("/operators")
    async def operators(request: Request, _: Given) -> Reply:
        # Without scripts a form sends the fields that nothing was chosen in, too.
        wanted = read_query(request.query, PageFilter, empty_is_absent=True)
        async with making:
            sections, whole = await asyncio.to_thread(made)
        return answer_file(whole if wanted == PageFilter() else _filtered(sections, wanted), "text/html", _policy())

    return found.routes


def _made(device: Device) -> tuple[Sequence[Section], bytes]:
    """All sections, and the page with them."""
    sections = [_section(operator, curve(operator, device)) for operator in OPERATORS.values()]
    return sections, _page(sections, PageFilter())


def _filtered(sections: Sequence[Section], wanted: PageFilter) -> bytes:
    """What the query leaves of the page."""
    words, chosen = wanted.search.lower().split(), set(select(wanted))
    found = [each for each in sections if each.operator in chosen and all(word in each.text for word in words)]
    return _page(found, wanted)


@cache
def _asset(name: str) -> str:
    return (files(__package__) / _PAGES / name).read_text(encoding="utf-8")


@cache
def _policy() -> str:
    """What the page may do: nothing but apply its own style and run its own script."""

    def only(name: str) -> str:
        return f"'sha256-{b64encode(sha256(_asset(name).encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {only('operators.css')}; script-src {only('operators.js')}; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, _PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"words": _words, "value": _value, "field_kind": field_kind}
    return environment


def _page(sections: Sequence[Section], wanted: PageFilter) -> bytes:
    """The document with these sections. With all of them it has the script that filters them in the browser."""
    families: dict[str, list[Section]] = {}
    for section in sections:
        families.setdefault(section.operator.family(), []).append(section)
    page = _templates().get_template("operators.html")
    text = page.render(
        version=__version__,
        style=Markup(_asset("operators.css")),  # noqa: S704 - our own files, and what our templates made
        script=Markup(_asset("operators.js")),  # noqa: S704 - our own file
        sections=sections,
        families=families.items(),
        total=len(OPERATORS),
        complete=wanted == PageFilter(),
        wanted=wanted,
        chosen={name: getattr(wanted, name) for name in ("family", "data_type", "feature_level")},
        choices=[
            ("family", "Family", sorted({operator.family() for operator in OPERATORS.values()})),
            ("data_type", "Data type", list(DataType)),
            ("feature_level", "Feature level", [level for level in FeatureLevel if level != NEWEST]),
        ],
        most=MOST,
    )
    return text.encode()


def _section(operator: type[Operator], drawn: Curve | None) -> Section:
    described, name = describe(operator), operator.short_name()
    request = shlex.quote(paste(example_for_people(operator)))
    html = (
        _templates()
        .get_template("operator.html")
        .render(
            name=name,
            described=described,
            support=" ".join(_types(row) for row in reversed(described["support"])),
            rows=[
                {"level": _level(row), "dimensions": span(counts), "tensors": tensors, "data_types": ", ".join(types)}
                for row in described["support"]
                for tensors, types, counts in support_groups(row)
            ],
            request=f"curl -s http://localhost:8000/v1/dispatch -H 'content-type: application/json' -d {request}",
            plot=plots.draw(drawn) if drawn else None,
            caption=_caption(drawn) if drawn else "",
            label=f"Curve of {name}" if drawn else "",
            **{each: getattr(plots, each.upper()) for each in ("width", "height", "left", "top", "right", "bottom")},
        )
    )
    text = "\n".join([name, described["summary"], described["formula"]]).lower()
    return Section(operator, name, text, Markup(html))  # noqa: S704 - our template made it


def _level(row: SupportRow) -> str:
    return row["feature_level"].removeprefix(FeatureLevel.prefix())


def _types(row: SupportRow) -> str:
    """All types of a row, of whatever tensor, for the page's script."""
    types = dict.fromkeys(each for tensor in row["tensors"].values() for each in tensor["data_types"])
    return f"{_level(row)}:{','.join(types)}"


def _caption(drawn: Curve) -> str:
    stated = [f"{name} = {_value(value)}" for name, value in drawn.attributes.items()]
    return f"On {drawn.data_type}" + (f", with {', '.join(stated)}" if stated else "") + "."


def _words(name: str) -> Markup:
    """A long name that may be broken where one of its words ends."""
    return Markup("<wbr>").join(re.split(r"(?<=_)|(?<=[a-z])(?=[A-Z])", name))


def _value(value: Any) -> str:
    """An attribute's value as JSON, but for texts, which need no quotes here."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
