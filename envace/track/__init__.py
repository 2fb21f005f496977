"""What MLflow is told about a run: names, lineage, redaction, and a client bound to one run.

Flows in: metrics, parameters, parameter files, git and DVC state. Flows out: rows of the MLflow store, or of
a buffer on disk while the store is away.
Invariant: nothing here uses MLflow's global "active run"; every write names the run it is for.
"""
