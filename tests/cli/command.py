"""The command as the tests call it: in this process, its output into a pipe."""

from click.testing import CliRunner, Result

from app.cli import main


def dmlserve(
    *arguments: object,
    env: dict[str, str] | None = None,
    columns: int | None = None,
    charset: str = "utf-8",
    given: bytes | None = None,
) -> Result:
    """`dmlserve` with `arguments`, `env` added to ours and what is `given` on standard input; `columns` is the width of
    a terminal to believe in."""
    width = None if columns is None else str(columns)
    added = {"COLUMNS": width} | (env or {})
    return CliRunner(charset).invoke(main, [str(each) for each in arguments], env=added, input=given)


def printed(result: Result) -> str:
    """What a command that succeeded wrote."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def refusal(result: Result, status: int = 1) -> list[str]:
    """The lines of a command that failed, each of which begins with `Error: `."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all(line.startswith("Error: ") for line in lines)
    return [line.removeprefix("Error: ") for line in lines]
