"""Does a cache hold what its ledger promises? Every field is opened and measured before a ledger is believed."""

import numpy as np

from levanter.store._arrays import join_path
from levanter.store.errors import CorruptCacheError, LedgerFormatError
from levanter.store.jagged_array import JaggedArrayStore
from levanter.store.ledger import CONSOLIDATED, SHARDED, CacheLedger, Schema, read_ledger
from levanter.store.tree_store import schema_on_disk


def verify_cache(cache_dir: str, *, read_all: bool = False) -> CacheLedger:
    """Open every field of a cache, shards included, and compare it with the ledger.

    Args:
        cache_dir: A cache of either layout.
        read_all: Also read and decode every element (slow; finds damaged bytes).
    Returns:
        The ledger, its schema filled in from disk where it recorded none.
    Raises:
        CacheNotFinishedError: No committed ledger.
        CorruptCacheError: A field is missing, short, or unreadable.
        LedgerFormatError: The ledger contradicts itself or its shards.
    """
    ledger = read_ledger(cache_dir)
    if ledger.layout == SHARDED:
        for name in ledger.finished_shards:
            shard = verify_cache(join_path(cache_dir, name), read_all=read_all)
            if shard.total_num_rows != ledger.shard_rows[name]:
                raise LedgerFormatError(
                    cache_dir, f"shard {name!r} holds {shard.total_num_rows} rows, not {ledger.shard_rows[name]}"
                )
        return ledger
    schema = ledger.schema or schema_on_disk(cache_dir)
    if not schema:
        raise CorruptCacheError(cache_dir, "*", "no field found")
    verify_arrays(cache_dir, ledger, schema, read_all=read_all)
    if ledger.schema:
        return ledger
    counts = {name: JaggedArrayStore.open(join_path(cache_dir, name)).data_size for name in schema}
    return CacheLedger(
        ledger.total_num_rows, ledger.shard_rows, True, ledger.finished_shards, counts, {}, CONSOLIDATED,
        ledger.metadata, schema,
    )  # fmt: skip


def verify_arrays(cache_dir: str, ledger: CacheLedger, schema: Schema, *, read_all: bool = False) -> None:
    """Open the arrays of a consolidated cache and compare them with its ledger.

    Raises:
        CorruptCacheError: A field is missing, short, or unreadable.
    """
    for name, spec in schema.items():
        try:
            store = JaggedArrayStore.open(join_path(cache_dir, name), item_rank=spec.rank, dtype=spec.dtype)
            _verify_field(cache_dir, name, store, ledger, read_all=read_all)
        except (FileNotFoundError, ValueError) as error:
            raise CorruptCacheError(cache_dir, name, f"cannot be read ({error})") from error


def _verify_field(cache_dir: str, name: str, store: JaggedArrayStore, ledger: CacheLedger, *, read_all: bool) -> None:
    if store.num_rows != ledger.total_num_rows:
        raise CorruptCacheError(cache_dir, name, f"{store.num_rows} rows, ledger says {ledger.total_num_rows}")
    promised = ledger.field_counts.get(name, store.data_size)
    if store.data_size != promised:
        raise CorruptCacheError(cache_dir, name, f"{store.data_size} elements, ledger says {promised}")
    if store.data_size:
        # The last element is in the last chunk; reading it proves the shard's index and that chunk decode.
        store.read_flat_sync(np.array([store.data_size - 1]), 1)
    if read_all:
        for begin in range(0, store.num_rows, 65536):
            store.get_batch_sync(range(begin, min(begin + 65536, store.num_rows)))
