"""High-end nodes are kept for the jobs that name them, against plain counting."""

from __future__ import annotations

import dataclasses

import numpy as np
import place_cases as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.reserve_and_pack import ReserveAndPack
from slurm_dl.placement.scheme import Spot, Wait


@given(case=pc.cases(), data=st.data(), keep=st.sampled_from([0.3, 1.0, 2.0]))
@settings(max_examples=300, deadline=None)
def test_jobs_of_any_type_never_take_the_last_high_end_nodes(
    case: pc.Case, data: st.DataObject, keep: float
) -> None:
    """They are packed on the others, take a spare high-end node at most, and wait for no other."""
    snap, m = pc.snapshot(case), len(case.nodes)
    high = np.array(data.draw(st.lists(st.booleans(), min_size=m, max_size=m)))
    named = np.array(data.draw(st.lists(st.booleans(), min_size=len(snap.jobs), max_size=99)))
    named = named[: len(snap.jobs)]
    snap = dataclasses.replace(
        snap,
        seen=dataclasses.replace(
            snap.seen,
            gpu_types=("t4", "v100"),
            nodes=dataclasses.replace(snap.seen.nodes, gpu_type=high.astype(np.int16)),
            jobs=dataclasses.replace(
                snap.seen.jobs, gpu_type=np.where(named, 1, -1).astype(np.int16)
            ),
        ),
    )
    stock, ledger = FreeNodes.of(snap, {}), pc.Ledger(case)
    placer = ReserveAndPack(high_end=("v100",), keep=keep).begin(snap, stock, {})
    least = int(keep) if keep >= 1 else int(np.ceil(keep * high.sum()))

    def left() -> int:
        """High-end nodes with all their GPUs free."""
        whole = (case.nodes[n].gpus == ledger.free[n][0] and ledger.up[n] for n in range(m))
        return sum(free and is_high for free, is_high in zip(whole, high.tolist(), strict=True))

    for want in pc.wants(snap):
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        fitting = {
            n: [
                node
                for node in range(m)
                if want.need.allowed[node]
                and ledger.fits(node, share, exclusive=want.need.exclusive)
            ]
            for n, share in pc.shares(want).items()
        }
        before = left()
        if not isinstance(answer, Spot):
            if named[want.row]:
                assert all(len(nodes) < n for n, nodes in fitting.items())
            assert (
                all(sum(not high[i] for i in f) < n for n, f in fitting.items())
                or (named[want.row])
            )
            for node in () if named[want.row] else fitting.get(1, ()):
                opens = ledger.free[node][0] == case.nodes[node].gpus
                assert before - opens < least
            if isinstance(answer, Wait) and answer.within is not None:
                assert not (answer.within & high).any()
            continue
        share = pc.shares(want)[len(answer.nodes)]
        for node in answer.nodes:
            ledger.give(node, share)
        stock.take(want, answer.nodes)
        on_high = high[list(answer.nodes)]
        if named[want.row]:
            assert on_high.all()
        elif on_high.any():
            assert left() >= least
            assert all(sum(not high[i] for i in f) < n for n, f in fitting.items())
