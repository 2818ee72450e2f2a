"""Kafka's requests about groups that kafka-python (3.0.12) has no schemas for.

Problem: members of KIP-848, share and streams groups are told by requests of their own, which
kafka-python does not know yet. Choice: their fields in its own form (JSON beside this file, by
Kafka's protocol guide, checked against a 4.3.1 broker in tests); it does the rest as with its own.
Cost: a request that kafka-python learns later stands here twice until somebody deletes ours.

Source: KIP-848, KIP-1099 (ConsumerGroupDescribe), KIP-932 (ShareGroupDescribe,
DescribeShareGroupOffsets), KIP-1226 (its lag), KIP-1071 (StreamsGroupDescribe).
"""

from kafka.protocol.api_message import ApiMessage

_HERE = "fleet.observe.messages"


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """State and members of KIP-848 groups."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Answers ConsumerGroupDescribe (KIP-848)."""


class ShareGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """State and members of share groups."""


class ShareGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Answers ShareGroupDescribe (KIP-932)."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """State, topology and members of streams groups."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Answers StreamsGroupDescribe (KIP-1071)."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Where share groups begin in each partition, and what is behind."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Answers DescribeShareGroupOffsets (KIP-932)."""
