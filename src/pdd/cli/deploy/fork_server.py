"""A process that has imported what takes long, and becomes others: forks itself into programs of the same Python.

Run by the supervisor (``forking``), never by people. Each order on its socket is a program's arguments with three
descriptors: the program's lifeline, its ready pipe and its log. The program becomes a grandchild whose parent has left,
so that it belongs to the supervisor, which hears of its end even when this process is gone. It is the program that
answers, so that none runs which the supervisor does not know. This process ends with its socket.

One thread only: a lock that another holds while this one forks would never be opened in the child.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import runpy
import socket
import sys
import time

import msgspec

MAX_MESSAGE_BYTES = 64 * 1024
NUM_DESCRIPTORS = 3


class ForkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A program to become: ``sys.executable``, then a script's path or ``-m`` and a module, then its arguments."""

    arguments: tuple[str, ...]


class Forked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an order."""

    pid: int


def main() -> None:
    """Serves orders until the supervisor closes its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--import", dest="module", required=True)
    given = parser.parse_args()
    orders = socket.socket(fileno=given.socket_fd)
    importlib.import_module(given.module)
    # What is imported stays: the collector's marks would make every child copy all of it.
    gc.collect()
    gc.freeze()
    order = _serve(orders)
    if order is not None:
        _become(order)


def _serve(orders: socket.socket) -> ForkOrder | None:
    """Returns an order in the process that has to obey it, and None here when there will be no more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(
            orders, MAX_MESSAGE_BYTES, NUM_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return None
        order = msgspec.json.decode(message, type=ForkOrder)
        lifeline, ready, log = descriptors
        if _fork_and_leave():
            orders.send(msgspec.json.encode(Forked(pid=os.getpid())))
            orders.close()
            _settle(log)
            return ForkOrder(arguments=(*order.arguments, f"--lifeline-fd={lifeline}", f"--ready-fd={ready}"))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_and_leave() -> bool:
    """True in a grandchild whose parent is gone already. Raises OSError: there is none."""
    between = os.fork()
    if between == 0:
        parent = os.getpid()
        if os.fork() != 0:
            os._exit(0)
        while os.getppid() == parent:  # for as long as an exit takes
            time.sleep(0.001)
        return True
    _, status = os.waitpid(between, 0)
    if status != 0:
        raise OSError("the process in between could not fork")
    return False


def _settle(log: int) -> None:
    """What ``exec`` with its own session, no input and a log would have done."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def _become(order: ForkOrder) -> None:
    _, *rest = order.arguments
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()
