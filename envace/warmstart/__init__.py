"""The tiny start policy of the desk: its corpus, tokenizer and supervised training, and what the result
scores.

`python -m envace.warmstart` rebuilds, measures and installs the policy that comes with the project.
"""
