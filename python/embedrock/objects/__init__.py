"""Commits of a store in object storage: S3, GCS, Azure, or a folder.

:func:`push` sends what the storage lacks of one commit of a store that may be in use, :func:`pull`
makes a store of it again, :func:`list` tells what was pushed to a URL, and :func:`prune` removes
what only old pushes have. ``docs/formats/objects.md`` says what lies there. Needs ``obstore``.
"""

from embedrock.objects.verbs import list, prune, pull, push

__all__ = ["list", "prune", "pull", "push"]
