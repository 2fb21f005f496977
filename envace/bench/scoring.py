"""What an adapter's scores are made with: the identity that stands in each, resamples, completeness."""

from __future__ import annotations

from envace.bench.summary import Identity


class Scoring(Identity, total=False):
    """Keywords of `Adapter.summarise`, handed on as they are."""

    bootstrap: int  # resamples of an interval
    min_complete: float  # share of the planned samples below which every number is withheld
