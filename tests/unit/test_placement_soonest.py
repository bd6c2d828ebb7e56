"""When a node will have room, against running the clock forward in plain Python."""

from __future__ import annotations

import place_cases as pc
import pytest
from hypothesis import given, settings

from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask
from slurm_dl.placement.soonest import NEVER_S, Soonest


@given(case=pc.cases())
@settings(max_examples=100)
def test_room_comes_when_enough_of_the_jobs_on_a_node_have_ended(case: pc.Case) -> None:
    """At each end in turn what it held is free again; an end that nobody knows comes last."""
    snap = pc.snapshot(case)
    soonest = Soonest(snap, FreeNodes.of(snap, pc.PROFILES))
    for share in ((8.0, 1, 0), (6.0, 1, 0), (4.0, 50, 900), (1.0, 60, 0)):
        ask = Ask(1, *share)
        expected = []
        for node in range(len(case.nodes)):
            ledger, room_s = pc.Ledger(case), NEVER_S
            here = [run for run in case.runs if node in run.nodes]
            if ledger.fits(node, share):
                room_s = 0.0
            elif ledger.up[node]:
                for run in sorted(here, key=lambda run: run.left_s):
                    ledger.give(node, (-run.gpus, -run.cpus, -run.mem_mb))
                    if ledger.fits(node, share):
                        room_s = min(run.left_s, NEVER_S)
                        break
            expected.append(room_s)
        up = [n for n, node in enumerate(case.nodes) if node.up]
        found = soonest.room_s(ask)
        assert [found[n] for n in up] == pytest.approx([expected[n] for n in up])
