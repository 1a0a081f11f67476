"""Look at and move files in any store: the library behind the command ``fsutil``.

``rigging.fsutil.cli`` is the command, ``rigging.fsutil.usage`` counts, ``rigging.fsutil.mirror_tree`` compares trees;
copying with checks is ``rigging.filesystem.transfer``.
"""
