"""The formats of click logs that are streamed, by the name that users call them."""

from __future__ import annotations

from embedrock.data.avazu import AVAZU
from embedrock.data.criteo import CRITEO
from embedrock.data.streamed import Format

STREAMED: dict[str, Format] = {kind.name: kind for kind in (CRITEO, AVAZU)}
