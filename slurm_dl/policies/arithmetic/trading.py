"""Trading of GPU time: who gains little from fast GPUs sells them to who gains much.

Every trader has time on fast and on slow GPUs, and a speed-up: how many times as much it gets done
on a fast one. In each round the trader with the highest speed-up that has slow time left buys, and
the one with the lowest speed-up that has fast time left sells. The price of a fast GPU, in slow
ones, is the second-highest speed-up of those that have slow time left, as in an auction at the
second price, but never below what it is worth to the seller. The price lies between the two
speed-ups, so no trade makes anybody slower than before, and what there is of each type stays.

Source: Chaudhary et al., "Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep
Learning" (Gandiva_fair), EuroSys 2020, the section on trading.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64

_NOTHING: Final = 1e-9
"""A share of what there is in all, below which it is nothing."""


def trade(fast: F64, slow: F64, speed_up: F64, most: F64 | None = None) -> tuple[F64, F64]:
    """What each trader has of fast and slow GPUs after trading.

    Args:
        fast: ``(k,)`` fast GPUs of each before, 0 or more.
        slow: ``(k,)`` slow GPUs of each before, 0 or more.
        speed_up: ``(k,)`` what a fast GPU is worth to each, in slow ones, above 0.
        most: ``(k,)`` the most GPUs each can use, of both types together; None: any number.

    Returns:
        ``(k,)`` fast and ``(k,)`` slow GPUs of each.
    """
    fast, slow = fast.copy(), slow.copy()
    limit = np.full(len(fast), np.inf) if most is None else most
    nothing = _NOTHING * float(fast.sum() + slow.sum())
    # Each round uses up a buyer's slow time, a seller's fast time, or the room of one of them.
    sated = np.zeros(len(fast), dtype=np.bool_)
    for _ in range(4 * len(fast)):
        bids = np.where((slow > nothing) & ~sated, speed_up, -np.inf)
        asks = np.where((fast > nothing) & ~sated, speed_up, np.inf)
        if not len(bids):
            break
        buyer, seller = int(bids.argmax()), int(asks.argmin())
        if not speed_up[buyer] > speed_up[seller] or np.isinf([bids[buyer], asks[seller]]).any():
            break
        bids[buyer] = -np.inf
        price = max(float(bids.max()), float(speed_up[seller]))
        sold = min(float(slow[buyer]) / price, float(fast[seller]))
        # Who gets more GPUs than it gives must have work for them.
        grows = seller if price > 1 else buyer
        room = float(limit[grows] - fast[grows] - slow[grows])
        if price != 1 and sold * abs(price - 1) >= room - nothing:
            sold = min(sold, max(room, 0.0) / abs(price - 1))
            sated[grows] = True
        fast[buyer] += sold
        fast[seller] -= sold
        slow[buyer] -= sold * price
        slow[seller] += sold * price
    return np.maximum(fast, 0.0), np.maximum(slow, 0.0)
