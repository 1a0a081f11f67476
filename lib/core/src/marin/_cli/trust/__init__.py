"""The commands about trust: claims, keys, signatures, audits."""
