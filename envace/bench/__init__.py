"""Evaluation: benchmark runs -> sample records -> score records with intervals.

Flows in: a policy and tasks. Flows out: one `SampleRecord` a planned trial and one `ScoreRecord` a metric.
Invariant: every planned sample ends in exactly one record; what could not be scored is counted, never
dropped.
"""
