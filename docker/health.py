"""Exit with 0 if the service in this container is ready; HEALTHCHECK runs it.

Where the service listens is told by the variables that tell the service: DMLSERVE_HOST and DMLSERVE_PORT,
or DMLSERVE_UDS, and DMLSERVE_TLS_CERTIFICATE.
"""

import http.client
import os
import socket
import ssl

SECONDS = 4.0
"""For each step; less than the health check's own timeout."""


def connected() -> socket.socket:
    if path := os.environ.get("DMLSERVE_UDS"):
        local = socket.socket(socket.AF_UNIX)
        local.settimeout(SECONDS)
        local.connect(path)
        return local
    # Who connects to 0.0.0.0 or :: connects to this machine.
    return socket.create_connection((os.environ["DMLSERVE_HOST"], int(os.environ["DMLSERVE_PORT"])), SECONDS)


def is_ready() -> bool:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connected()
    if os.environ.get("DMLSERVE_TLS_CERTIFICATE"):
        # Who answers in this container need not prove who it is, and the certificate names another host.
        context = ssl._create_unverified_context()  # noqa: S323
        connection.sock = context.wrap_socket(connection.sock)
    connection.request("GET", "/health/ready")
    return connection.getresponse().status == http.client.OK


if __name__ == "__main__":
    raise SystemExit(not is_ready())
