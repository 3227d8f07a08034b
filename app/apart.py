"""Work in a process of its own, since what it starts does not survive a fork, or might not end."""

import os
import select
import signal
import traceback
from collections.abc import Callable

from app.signals import end_with_parent


def done_apart(work: Callable[[], str], seconds: float | None = None) -> str | None:
    """What `work` says, in a process forked for it that ends with this one; None if it failed, which is then on
    standard error, or said nothing for so many seconds. An ending signal ends both.
    """
    reading, writing = os.pipe()
    parent, process = os.getpid(), os.fork()
    if not process:
        status = 1
        try:
            end_with_parent(signal.SIGKILL, parent)  # a driver that hangs would keep it for ever
            os.write(writing, work().encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        if select.select([pipe], [], [], seconds)[0]:  # what it says, or that it has ended
            said = pipe.read().decode()
        else:
            os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return None if status else said
