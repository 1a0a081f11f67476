"""SQL over the ledger with DuckDB, an extra: ``pip install marin-core[ledger]``."""

from collections.abc import Mapping, Sequence
from typing import Any

from marin.errors import UsageError

try:
    import duckdb
except ImportError:
    duckdb = None

_READS = frozenset({"SELECT", "EXPLAIN"})


def run_query(
    tables: Mapping[str, Sequence[tuple[str, str]]], rows: Mapping[str, Sequence[Sequence[Any]]], sql: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL over in-memory tables.

    Args:
        tables: Columns of each table as ``(name, SQL type)``.
        rows: Rows of each table.
        sql: One query.
    Returns:
        Column names and rows.
    Raises:
        UsageError: DuckDB is not installed, or the query is not valid.
    """
    if duckdb is None:
        raise UsageError("SQL over the ledger needs DuckDB.", hint="Install it: pip install 'marin-core[ledger]'.")
    # No files, no network, no extensions: a query over the ledger can read the ledger and nothing else.
    with duckdb.connect(":memory:", config={"enable_external_access": "false"}) as connection:
        for table, columns in tables.items():
            declared = ", ".join(f'"{name}" {kind}' for name, kind in columns)
            connection.execute(f'CREATE TABLE "{table}" ({declared})')
            if rows[table]:
                marks = ", ".join("?" for _ in columns)
                connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [list(row) for row in rows[table]])
        try:
            _check_reads_only(sql)
            result = connection.execute(sql)
        except duckdb.Error as error:
            names = ", ".join(tables)
            raise UsageError(
                f"the query failed: {error}", hint=f"Tables: {names}. 'DESCRIBE steps' lists columns."
            ) from None
        names = [item[0] for item in result.description or ()]
        return names, result.fetchall()


def _check_reads_only(sql: str) -> None:
    """A statement that changes something would change a copy in memory, which nobody can mean.

    Raises:
        UsageError: It is not exactly one query.
    """
    assert duckdb is not None
    statements = duckdb.extract_statements(sql)
    kinds = [statement.type.name for statement in statements]
    if len(kinds) != 1 or kinds[0] not in _READS:
        shown = ", ".join(kind.lower() for kind in kinds) or "nothing"
        raise UsageError(
            f"the ledger can only be read: got {shown}; expected one SELECT, DESCRIBE, SHOW or EXPLAIN.",
            hint="Records are changed by running steps, never by SQL.",
        )
