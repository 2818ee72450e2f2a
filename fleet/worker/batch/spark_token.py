"""Calls to a Spark Connect server that asks for a token, without TLS.

Problem: PySpark 4.3's client turns TLS on as soon as it has a token, unless the server's name is
`localhost`, and a Connect server cannot speak TLS itself. Choice: the extension point that
PySpark documents, a channel builder: the token goes as the header that the server compares
(`authorization: Bearer …`), with every call. Cost: whoever can listen to the network between
client and server reads it; across networks use `sc://…;token=…` behind a proxy that ends TLS.
"""

from collections.abc import Iterable

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder


class BearerChannel(DefaultChannelBuilder):
    """A plain channel whose calls carry a token."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url)
        self._bearer = token

    @property
    def token(self) -> str | None:
        """The token that calls carry."""
        return self._bearer

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - PySpark's name
        """A channel without TLS, whatever the environment says of tokens."""
        return self._insecure_channel(self.endpoint)

    def metadata(self) -> Iterable[tuple[str, str]]:
        """Headers of every call."""
        return [*super().metadata(), ("authorization", f"Bearer {self._bearer}")]
