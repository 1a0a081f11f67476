"""Look at and move files in any store: the library behind the command ``fsutil``.

``rigging.fsutil.cli`` is the command; ``rigging.fsutil.transfer`` copies and checks, ``rigging.fsutil.usage`` counts.
"""
