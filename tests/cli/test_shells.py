"""Completion as the README has it, in bash, zsh and fish themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from shlex import quote

import pytest

from tests.conftest import COMMAND
from tests.readme import README


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_completes() -> None:
    (line,) = re.findall(r"^eval.*bash_source.*$", README, re.MULTILINE)
    script = f"""
        PATH={quote(str(COMMAND.parent))}:$PATH
        {line}
        complete -p dmlserve
        COMP_WORDS=(dmlserve operators ACTIVATION_CE) COMP_CWORD=2
        _dmlserve_completion dmlserve ACTIVATION_CE operators
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "ACTIVATION_CELU"


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes() -> None:
    (line,) = re.findall(r"^.*fish_source[^#]*", README, re.MULTILINE)
    script = f"set PATH {quote(str(COMMAND.parent))} $PATH; {line}; complete -C 'dmlserve operators ACTIVATION_CE'"
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ACTIVATION_CELU\n", "")


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes() -> None:
    """On a terminal: zsh completes nowhere else."""
    (line,) = re.findall(r"^eval.*zsh_source[^#]*", README, re.MULTILINE)
    ours, terminal = pty.openpty()
    environment = os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "PS1": "> ", "TERM": "dumb"}
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    )
    try:
        os.write(ours, f"autoload -Uz compinit; compinit -u -D; {line.strip()}; echo is'-'ready\n".encode())
        _wait_for(b"is-ready", ours)
        os.write(ours, b"dmlserve operators ACTIVATION_CE\t")
        _wait_for(b"ACTIVATION_CELU ", ours)
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(terminal)


def _wait_for(text: bytes, terminal: int) -> None:
    """Read what a terminal shows until `text` is there."""
    shown, end = b"", time.monotonic() + 30
    while text not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 1 << 16)
