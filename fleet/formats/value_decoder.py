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
_GUID_HEAD: Final = 17
"""In a header: a one and the schema's GUID, or as above."""
SchemaKey = int | str
"""A schema's id, or its GUID."""


def schema_in_header(head: bytes) -> SchemaKey | None:
    """The schema that a record's header names; None where it is of another format."""
    if len(head) == _GUID_HEAD and head[0] == 1:
        return str(UUID(bytes=head[1:]))
    return schema_in_value(head) if len(head) == _HEAD else None


def schema_in_value(raw: bytes) -> int | None:
    """The id before a value; None where there is none."""
    return int.from_bytes(raw[1:_HEAD], "big") if len(raw) >= _HEAD and raw[0] == 0 else None


@dataclass(frozen=True, kw_only=True)
class ValueDecoder:
    """For mapInArrow: each batch with one column more, and `error` behind it where asked for.

    writers: schema → the Avro schema as fastavro parsed it, None for JSON. unread: schema → why its
    values cannot be read. reader: the Avro schema to read into, None for JSON. named: a column of
    what the records' header `header` holds, which comes last and is left out of the rows; without
    it only values' own beginnings name schemas.
    """

    column: str
    into: str
    writers: Mapping[SchemaKey, Any]
    unread: Mapping[SchemaKey, str]
    reader: Any
    arrow: Any
    with_errors: bool
    install: str
    """What installs fastavro."""
    header: str = ""
    named: str | None = None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Raises ValueError with the record's place where errors have no column."""
        for batch in batches:
            values, errors = self.columns(batch)
            kept = [name for name in batch.schema.names if name != self.named]
            arrays = [*(batch.column(name) for name in kept), values]
            names = [*kept, self.into]
            if self.with_errors:
                arrays.append(pa.array(errors, pa.string()))
                names.append("error")
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def columns(self, batch: Any) -> tuple[Any, list[str | None]]:
        """Decoded values as an Arrow array, and what each of them lacks."""
        found: list[Any] = []
        errors: list[str | None] = []
        heads = batch.column(self.named).to_pylist() if self.named else [None] * len(batch)
        for row, (raw, head) in enumerate(
            zip(batch.column(self.column).to_pylist(), heads, strict=True)
        ):
            value, error = None, self.lacks(raw, head)
            try:
                if error is not None:
                    raise ValueError(error)
                value = None if raw is None else self._read(raw, head)
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

    def lacks(self, raw: bytes | None, head: bytes | None = None) -> str | None:
        """Why no schema of a value is known; head: what the record's header holds."""
        if raw is None:
            return None
        key = _schema_of(raw, head)
        if key in self.writers:
            return None
        if key is not None:
            return self.unread.get(key, f"schema {key} of {self.column} was not asked for")
        if head is not None:
            return f"header {self.header} of {len(head)} bytes holds no id and no GUID of a schema"
        where = f"no header {self.header} names one" if self.named else "the rows have no headers"
        return (
            f"{self.column} of {len(raw)} bytes does not begin with a zero and a schema id, and "
            f"{where}"
        )

    def value(self, raw: bytes | None, head: bytes | None = None) -> Any:
        """As pa.array takes it; None for a record without value, or without a schema (`lacks`).

        Raises ValueError with a sentence where the value is not what its schema says.
        """
        return None if raw is None or self.lacks(raw, head) else self._read(raw, head)

    def _read(self, raw: bytes, head: bytes | None) -> Any:
        """A value that lacks nothing."""
        schema_id = _schema_of(raw, head)
        assert schema_id is not None
        start = _HEAD if head is None else 0
        try:
            if self.reader is None:
                read = json.loads(raw[start:])
            else:
                read = self._avro(raw, start, self.writers[schema_id])
        except Exception as error:  # a damaged value fails in many ways inside fastavro
            if isinstance(error, ImportError):
                raise
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            raise ValueError(f"{self.column} does not fit schema {schema_id} ({said})") from error
        return _fitted(read, self.arrow, self.into)

    def _avro(self, raw: bytes, start: int, writer: Any) -> Any:
        try:
            from fastavro import schemaless_reader  # noqa: PLC0415 - only Avro needs it
        except ImportError as error:
            raise ImportError(
                f"Spark's tasks need fastavro, here and on executors: {self.install}"
            ) from error
        stream = io.BytesIO(raw)
        stream.seek(start)
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


def _schema_of(raw: bytes, head: bytes | None) -> SchemaKey | None:
    return schema_in_value(raw) if head is None else schema_in_header(head)


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
