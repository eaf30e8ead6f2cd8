"""Tables of a server: :func:`connect`, and what it gives."""

from embedrock.remote.client import RemoteStore, connect
from embedrock.remote.nodes import buckets_of
from embedrock.remote.table import RemoteTable

__all__ = ["RemoteStore", "RemoteTable", "buckets_of", "connect"]
