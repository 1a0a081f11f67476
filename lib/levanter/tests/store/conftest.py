import hashlib
import os

import pytest


@pytest.fixture
def tree_digest():
    """Digest of every file of a folder: names and bytes."""

    def digest(root):
        sha = hashlib.sha256()
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                path = os.path.join(folder, name)
                sha.update(os.path.relpath(path, root).encode())
                with open(path, "rb") as file:
                    sha.update(file.read())
        return sha.hexdigest()

    return digest
