"""`dmlserve capabilities`."""

import click

from app.cli.common import json_flag, opened_service, print_json, print_table, say, short
from app.settings import GIB, KIB, MIB, Settings


@click.command()
@json_flag
def capabilities(as_json: bool) -> None:
    """Show devices, feature levels and the limits in force."""
    with opened_service() as service:
        facts = service.capabilities()
    if as_json:
        print_json(facts)
        return
    devices = [
        [each.name, each.kind, each.description, _gib(each.memory_total_bytes), _gib(each.memory_available_bytes)]
        for each in facts["devices"]
    ]
    meanings = {name: info.description or "" for name, info in Settings.model_fields.items()}
    limits = [
        [name, _amount(name, value), meanings.get(name, "DirectML's own limit.")]
        for name, value in facts["limits"].items()
    ]
    levels = facts["feature_levels"]
    say(
        f"dmlserve {facts['version']}: {len(facts['operators'])} operators, "
        f"feature levels {short(levels[0])} to {short(levels[-1])}\n"
    )
    print_table(["device", "kind", "description", "memory", "available"], devices)
    say()
    print_table(["limit", "value", "meaning"], limits)


def _amount(limit: str, value: float) -> str:
    """With the unit that the limit's name tells, exactly."""
    if limit.endswith("_seconds"):
        return f"{value:g} s"
    if limit.endswith("_bytes"):
        for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value % size == 0:
                return f"{value // size} {unit}"
        return f"{value:,} bytes"
    return f"{value:,}"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"
