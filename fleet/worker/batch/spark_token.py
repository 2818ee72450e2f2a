"""Calls to a Spark Connect server that asks for a token, without TLS.

Problem: PySpark 4.3's client uses TLS as soon as it has a token, unless the server's name is
`localhost`. A Connect server cannot use TLS itself. Choice: PySpark's documented extension point, a
channel builder. Each call sends the token as the header that the server compares (`authorization:
Bearer …`). Cost: a listener on the network between client and server can read the token.
"""

from collections.abc import Iterable

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder


class BearerChannel(DefaultChannelBuilder):
    """A channel without TLS whose calls carry a token."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url)
        self._bearer = token

    @property
    def token(self) -> str | None:
        """Returns the token that calls carry."""
        return self._bearer

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - PySpark's name
        """Returns a channel without TLS, whatever the environment says of tokens."""
        return self._insecure_channel(self.endpoint)

    def metadata(self) -> Iterable[tuple[str, str]]:
        """Returns the headers of every call."""
        return [*super().metadata(), ("authorization", f"Bearer {self._bearer}")]
