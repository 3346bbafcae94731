"""What the overview draws: figures of the cluster, asked for once for all who look."""

from __future__ import annotations

from halfmoon.client.admin import AsyncAdmin


class Sampler:
    """Figures of the cluster as time goes by."""

    def __init__(self, admin: AsyncAdmin) -> None:
        self._admin = admin
