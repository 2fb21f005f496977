"""The I/O of the stages, grouped by kind and shared by the flows.

Flows in: a stage's `Run` and paths. Flows out: files at the paths dvc.yaml names.
Invariant: a file appears under its final name only when it is complete; results of tasks are not cached by
Prefect (DVC is the only cache).
"""
