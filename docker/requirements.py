"""Print what the project in a pyproject.toml depends on, one requirement a line, with the extras asked for.

Usage: requirements.py PYPROJECT [EXTRA[,EXTRA...]]
"""

import sys
import tomllib


def main(pyproject: str, extras: str = "") -> None:
    with open(pyproject, "rb") as file:
        project = tomllib.load(file)["project"]
    optional = project.get("optional-dependencies", {})
    wanted = [extra.strip() for extra in extras.split(",") if extra.strip()]
    if unknown := [extra for extra in wanted if extra not in optional]:
        raise SystemExit(f"no such extra: {', '.join(unknown)}; there are: {', '.join(optional)}")
    for requirement in [*project.get("dependencies", []), *(line for extra in wanted for line in optional[extra])]:
        print(requirement)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
