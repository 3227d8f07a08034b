"""TLS, with a certificate that can be renewed while the service runs."""

import logging
import ssl

from app.settings import Settings, Unusable

log = logging.getLogger("app")


class Certificate:
    """A certificate with those that vouch for it, and its private key, in PEM. Raises Unusable.

    Connections are made with `context`. It is made before workers are forked, so that a session begun with one of them
    goes on with another.
    """

    def __init__(self, certificate: str, key: str) -> None:
        """Without a file `key`, the key is in the file `certificate`."""
        self.files = [certificate, key] if key else [certificate]
        self.context = self._current = self._read()
        # To change the certificate of a context that handshakes use is not safe; to choose another context is.
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again, in any thread. If they cannot be used, the log says why and the old ones stay."""
        try:
            self._current = self._read()
        except Unusable as error:
            log.error("The TLS certificate stays as it was: %s", error)
        else:
            log.info("The TLS certificate was read again")

    def _choose(self, connecting: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connecting.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        names = " and ".join(self.files)
        try:
            context.load_cert_chain(self.files[0], self.files[-1], _no_password)
        except ssl.SSLError as error:
            why = (error.reason or "no PEM").lower().replace("_", " ")
            raise Unusable(
                f"The TLS files {names} cannot be used: {why}. They hold a certificate and its key, in PEM and without "
                "a password."
            ) from None
        except OSError as error:
            raise Unusable(f"The TLS files {names} cannot be read: {error.strerror}.") from None
        return context


def certificate_of(settings: Settings) -> Certificate | None:
    """None where none is set. Raises Unusable."""
    if settings.tls_certificate:
        return Certificate(settings.tls_certificate, settings.tls_key)
    if settings.tls_key:  # never taken for that there is to be no TLS
        raise Unusable("tls_key is given, but there is no tls_certificate that it belongs to.")
    return None


def _no_password() -> str:
    """OpenSSL would else ask for it on the terminal, and wait."""
    return ""
