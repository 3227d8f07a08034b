"""`dmlserve operators`."""

from collections.abc import Callable

import click

from app.cli.common import LISTED, fail, flag_of, json_flag, meant, print_json, print_table, say, short
from app.cli.completion import FILTERS, names, operator_names
from app.contract.suggestions import did_you_mean
from app.contract.validation import validate
from app.contract.violations import ContractError, Violation
from app.engine.capabilities import (
    OperatorDescription,
    OperatorFilter,
    describe,
    example_for_people,
    field_kind,
    paste,
    select,
    span,
    summarize,
    support_groups,
)
from app.operators.catalog import OPERATORS, find_operator


def _filter_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each field of OperatorFilter, which judges what is given."""
    for name, info in reversed(OperatorFilter.model_fields.items()):
        metavar = name.rpartition("_")[2].upper()
        flag = click.option(
            flag_of(name), name, metavar=metavar, help=info.description, shell_complete=names(FILTERS[name])
        )
        command = flag(command)
    return command


_FEW = 16
"""Names that a line may tell."""


@click.command(short_help="List operators, or show one.")
@click.argument("name", required=False, shell_complete=operator_names)
@_filter_flags
@json_flag
def operators(name: str | None, as_json: bool, **wanted: str | None) -> None:
    """List all operators, or those that the flags ask for, or show the one called NAME."""
    given = {field: value for field, value in wanted.items() if value is not None}
    if name is None:
        _list_operators(given, as_json)
        return
    if given:
        fail(f"Give a name, here {name}, or {' and '.join(map(flag_of, given))}, not both.", status=2)
    found = find_operator(name.upper())
    if found is None:
        alike = [each for each in map(short, OPERATORS) if name.upper() in each]
        few = 0 < len(alike) <= _FEW
        hint = f"do you mean {' or '.join(alike)}?" if few else f"{LISTED}{meant(name)}"
        fail(f"There is no operator {name}; {hint}")
    described = describe(found)
    if as_json:
        print_json(described)
    else:
        _show_operator(described, paste(example_for_people(found)))


def _list_operators(given: dict[str, str], as_json: bool) -> None:
    try:
        chosen = select(validate(OperatorFilter, {field: value.upper() for field, value in given.items()}))
    except ContractError as error:
        fail(*(_bad_flag(violation, given) for violation in error.violations), status=2)
    summaries = [summarize(operator) for operator in chosen]
    if as_json:
        print_json(summaries)
    elif summaries:
        rows = [[short(each["Type"]), short(each["introduced"]), each["formula"]] for each in summaries]
        print_table(["operator", "since", "formula"], rows)
    else:
        say("No operator is like that.")


def _bad_flag(violation: Violation, given: dict[str, str]) -> str:
    allowed = violation.allowed if isinstance(violation.allowed, list) else []
    hint = did_you_mean(violation.given, allowed)
    field = str(violation.path[0])
    return f"{flag_of(field)} is {given[field]}; give one of {', '.join(map(str, allowed))}.{hint}"


def _show_operator(described: OperatorDescription, request: str) -> None:
    say(described["Type"], style="bold")
    say(f"{described['summary']}\n\n  {described['formula']}\n")
    fields = [
        [
            each["name"],
            field_kind(each),
            "required" if each["required"] else "null" if each["default"] is None else str(each["default"]),
            each["description"],
        ]
        for each in described["fields"]
    ]
    print_table(["field", "type", "default", "meaning"], fields)
    say()
    support = [
        [short(row["feature_level"]), span(counts), tensors, ", ".join(types)]
        for row in described["support"]
        for tensors, types, counts in support_groups(row)
    ]
    print_table(["from level", "dimensions", "tensors", "data types"], support)
    say(f"\nIn place: {', '.join(described['in_place']) or 'no'}")
    for note in described["notes"]:
        say(f"Note: {note}")
    say("\nA request, for 'dmlserve run' or POST /v1/dispatch:")
    click.echo(request)
