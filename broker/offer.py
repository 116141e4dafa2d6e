"""Where the learner offers its newest weights, for engines that take them straight from its memory.

Kept beside the leases: only the newest word counts, and an address that nobody answers at any more does no
harm, since every published version is stored too.
"""

import orjson
from pydantic import ValidationError

from broker.bus import Bus
from broker.errors import Conflict
from broker.settings import Settings

ROLE = "weights-offer"


class Offer(Settings):
    """An address, and what to say there."""

    host: str
    port: int
    token: str
    """Only who can read the run's leases may have its weights."""


async def announce(bus: Bus, offer: Offer) -> None:
    """From now on it is this one; the last learner to announce counts."""
    value = orjson.dumps(offer.model_dump())
    while True:
        _, revision = await bus.read_lease(ROLE)
        try:
            await bus.write_lease(ROLE, value, expect=revision)
            return
        except Conflict:
            continue


async def newest(bus: Bus) -> Offer | None:
    """None when no learner of the run has offered any."""
    value, _ = await bus.read_lease(ROLE)
    try:
        return None if value is None else Offer.model_validate(orjson.loads(value))
    except (ValueError, ValidationError):
        return None
