"""One type per column: how schemas of batches, files and shards are brought together.

Widening rules (`unify_types`): null gives way to anything; integers widen to int64, or to uint64 where one side is;
floats widen to float64; integer with float gives float64; structs take the union of their fields; lists unify their
items; a dictionary column counts as its values. A value that the wider type cannot hold exactly (a negative one, or one
beyond 2**53) is refused when it is cast. Everything else is a conflict that names the field and both types. Field
order is the order of first appearance.
"""

from collections.abc import Iterable

import pyarrow as pa

from zephyr.errors import SchemaConflictError


def unify_types(left: pa.DataType, right: pa.DataType, *, field: str, where: str = "") -> pa.DataType:
    """The narrowest type that both sides fit.

    Raises:
        SchemaConflictError: there is none.
    """
    if left == right:
        return left
    if pa.types.is_dictionary(left) or pa.types.is_dictionary(right):
        plain = [t.value_type if pa.types.is_dictionary(t) else t for t in (left, right)]
        return unify_types(plain[0], plain[1], field=field, where=where)
    if pa.types.is_null(left):
        return right
    if pa.types.is_null(right):
        return left
    numbers = _unify_numbers(left, right)
    if numbers is not None:
        return numbers
    for narrow, wide in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if {left, right} == {narrow, wide}:
            return wide
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        merged = unify_schemas(pa.schema(list(left)), pa.schema(list(right)), where=where, prefix=f"{field}.")
        return pa.struct(list(merged))
    if _is_list(left) and _is_list(right):
        return pa.list_(unify_types(left.value_type, right.value_type, field=f"{field}[]", where=where))
    raise SchemaConflictError(field, str(left), str(right), where=where)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _unify_numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    integers = pa.types.is_integer(left), pa.types.is_integer(right)
    floats = pa.types.is_floating(left), pa.types.is_floating(right)
    if all(integers):
        return pa.uint64() if pa.uint64() in (left, right) else pa.int64()
    if (integers[0] or floats[0]) and (integers[1] or floats[1]):
        return pa.float64()
    return None


def unify_schemas(left: pa.Schema, right: pa.Schema, *, where: str = "", prefix: str = "") -> pa.Schema:
    """Union of the fields, each with its unified type; all fields become nullable.

    Raises:
        SchemaConflictError: a field has types that cannot be unified.
    """
    if left.equals(right) and all(f.nullable for f in left):
        return left
    fields: dict[str, pa.DataType] = {f.name: f.type for f in left}
    for f in right:
        seen = fields.get(f.name)
        fields[f.name] = f.type if seen is None else unify_types(seen, f.type, field=prefix + f.name, where=where)
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()])


def unify_all(schemas: Iterable[pa.Schema], *, where: str = "") -> pa.Schema:
    """Fold `unify_schemas` over all schemas, in order."""
    out: pa.Schema | None = None
    for schema in schemas:
        out = schema if out is None else unify_schemas(out, schema, where=where)
    return (pa.schema([]) if out is None else out).remove_metadata()


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, where: str = "") -> pa.RecordBatch:
    """Bring a batch to `schema`: missing columns become null, types are widened without loss.

    Raises:
        SchemaConflictError: a column has no place in `schema`, or a value does not fit its type.
    """
    if batch.schema.equals(schema):
        return batch
    for name in batch.schema.names:
        if schema.get_field_index(name) < 0:
            raise SchemaConflictError(name, "absent", str(batch.schema.field(name).type), where=where)
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
        columns.append(cast_array(column, field.type, field=field.name, where=where))
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_NARROWER = {"float": "int", "decimal": "int"}


def _family(kind: pa.DataType) -> str:
    """Types within which a cast keeps the value or fails."""
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "instant"
    return "list" if _is_list(kind) else str(kind)


def cast_array(array: pa.Array, kind: pa.DataType, *, field: str, where: str = "") -> pa.Array:
    """Cast without losing a value; a struct gains missing fields as null."""
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return cast_array(array.dictionary_decode(), kind, field=field, where=where)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        children = []
        for child in kind:
            index = array.type.get_field_index(child.name)
            value = pa.nulls(len(array), child.type) if index < 0 else array.field(index)
            children.append(cast_array(value, child.type, field=f"{field}.{child.name}", where=where))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(array.type) and pa.types.is_list(kind):
        values = cast_array(array.values, kind.value_type, field=f"{field}[]", where=where)
        if array.offset == 0 and array.null_count == 0:
            return pa.ListArray.from_arrays(array.offsets, values, type=kind)
        return pa.array(array.to_pylist(), kind)
    if not pa.types.is_null(array.type) and _family(array.type) not in (_family(kind), _NARROWER.get(_family(kind))):
        # Arrow would print numbers as text, or read text as numbers, without a word.
        raise SchemaConflictError(field, str(kind), str(array.type), where=where)
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaConflictError(field, str(kind), f"{array.type} ({error})", where=where) from error
