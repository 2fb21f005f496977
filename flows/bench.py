"""Stage `bench@<policy>-<benchmark>`: a policy in an upstream benchmark's own harness.

Flows in: `models/<policy>/`, the servers of `bench.user` and `bench.judge`. Flows out:
`results/bench/<policy>-<benchmark>/`: scores, samples, and the harness's raw files, keys scrubbed.
Invariant: a score stands only on a complete run; what failed is counted and named.
"""

from flows._entry import stage
from tasks.run import Run


@stage("bench", sections=("bench", "engine"), policy=lambda params, policy, benchmark: policy)
def bench(run: Run, policy: str, benchmark: str) -> None:
    """Score POLICY on BENCHMARK (bfcl, tau2, vita, finmcp)."""
    from tasks.bench import run_harness, write_bench

    write_bench(run, run_harness(run, policy, benchmark), policy, benchmark)


if __name__ == "__main__":
    bench.main()
