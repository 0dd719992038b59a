"""The program that Spark runs as Python on this machine: asks for a fork (see `forking`), and ends when that ends.

    python stand_in.py SOCKET MODULE ARGUMENTS …

It imports little, because Spark starts it ten times.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(path)
        except OSError:  # it was killed: then as pyspark does it
            os.execv(sys.executable, [sys.executable, "-m", *arguments])
        message = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109
        socket.send_fds(asking, [len(message).to_bytes(8)], [0, 1, 2])
        asking.sendall(message)
        code = asking.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
