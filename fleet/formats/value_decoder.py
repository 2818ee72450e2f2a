"""The function of a task: values of a batch in, a column of decoded ones out.

This module is sent by value, so that executors need fastavro and pyarrow and no `fleet`; schemas
come along, so that no task asks the registry. Sentences name types and places, not contents: they
end in logs.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import time
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

_HEAD: Final = 5
"""Bytes of the wire format: a zero and four of the schema's id, big-endian."""


@dataclass(frozen=True, kw_only=True)
class ValueDecoder:
    """For mapInArrow: each batch with one column more, and `error` behind it where asked for.

    writers: schema id → the Avro schema as fastavro parsed it, None for JSON. unread: schema id →
    why its values cannot be read. reader: the Avro schema to read into, None for JSON.
    """

    column: str
    into: str
    writers: Mapping[int, Any]
    unread: Mapping[int, str]
    reader: Any
    arrow: Any
    with_errors: bool
    install: str
    """What installs fastavro."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Raises ValueError with the record's place where errors have no column."""
        for batch in batches:
            values, errors = self.columns(batch)
            arrays = [*batch.columns, values]
            names = [*batch.schema.names, self.into]
            if self.with_errors:
                arrays.append(pa.array(errors, pa.string()))
                names.append("error")
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def columns(self, batch: Any) -> tuple[Any, list[str | None]]:
        """Decoded values as an Arrow array, and what each of them lacks."""
        found: list[Any] = []
        errors: list[str | None] = []
        for row, raw in enumerate(batch.column(self.column)):
            value, error = None, None
            try:
                value = self.value(raw.as_py())
            except ValueError as problem:
                error = str(problem)
                if not self.with_errors:
                    raise ValueError(f"{_place(batch, row)}: {error}") from problem
            found.append(value)
            errors.append(error)
        try:
            return pa.array(found, self.arrow), errors
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return self._one_by_one(batch, found, errors), errors

    def value(self, raw: bytes | None) -> Any:
        """As pa.array takes it; None for a record without value; ValueError with a sentence."""
        if raw is None:
            return None
        if len(raw) < _HEAD or raw[0] != 0:
            raise ValueError(
                f"{self.column} of {len(raw)} bytes does not begin with a zero and a schema id: no "
                "serializer of a schema registry wrote it"
            )
        schema_id = int.from_bytes(raw[1:_HEAD], "big")
        if schema_id in self.unread:
            raise ValueError(self.unread[schema_id])
        try:
            if self.reader is None:
                read = json.loads(raw[_HEAD:])
            else:
                read = self._avro(raw, self.writers[schema_id])
        except Exception as error:  # a damaged value fails in many ways inside fastavro
            if isinstance(error, ImportError):
                raise
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            raise ValueError(f"{self.column} does not fit schema {schema_id} ({said})") from error
        return _fitted(read, self.arrow, self.into)

    def _avro(self, raw: bytes, writer: Any) -> Any:
        try:
            from fastavro import schemaless_reader  # noqa: PLC0415 - only Avro needs it
        except ImportError as error:
            raise ImportError(
                f"Spark's tasks need fastavro, here and on executors: {self.install}"
            ) from error
        stream = io.BytesIO(raw)
        stream.seek(_HEAD)
        found = schemaless_reader(stream, writer, self.reader)
        if left := len(raw) - stream.tell():
            raise ValueError(f"{left} bytes are left over")
        return found

    def _one_by_one(self, batch: Any, found: list[Any], errors: list[str | None]) -> Any:
        for row, value in enumerate(found):
            try:
                pa.array([value], self.arrow)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as problem:
                said = f"{self.column} is no {self.arrow} ({type(problem).__name__})"
                if not self.with_errors:
                    raise ValueError(f"{_place(batch, row)}: {said}") from problem
                found[row], errors[row] = None, said
        return pa.array(found, self.arrow)


def _fitted(value: Any, kind: Any, at: str) -> Any:
    """As pa.array takes it without guessing; ValueError with the field that does not fit."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {f.name: _fitted(value.get(f.name), f.type, f"{at}.{f.name}") for f in kind}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(k, _fitted(v, kind.item_type, f"{at}{{}}")) for k, v in value.items()]
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return [_fitted(v, kind.value_type, f"{at}[]") for v in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000
        micros += value.microsecond
        return micros // 1000 if pa.types.is_int32(kind) else micros
    whole = not isinstance(value, float) or value.is_integer()
    if (
        pa.types.is_nested(kind)
        or isinstance(value, dict | list)
        or isinstance(value, bool) != pa.types.is_boolean(kind)
        or (isinstance(value, str) != pa.types.is_string(kind))
        or (pa.types.is_integer(kind) and not whole)
    ):
        raise ValueError(f"{at} is a {type(value).__name__}, no {kind}")
    return value


def _place(batch: Any, row: int) -> str:
    names = set(batch.schema.names)
    if not names >= {"topic", "partition", "offset"}:
        return "a record (the rows lack topic, partition, offset)"
    topic, partition, offset = (
        batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
    )
    return f"{topic}-{partition}, offset {offset}"
