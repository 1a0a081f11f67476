"""Communication between the processes of a multi-host run."""

from jax.experimental.multihost_utils import assert_equal, broadcast_one_to_all, sync_global_devices

__all__ = ["assert_equal", "broadcast_one_to_all", "sync_global_devices"]
