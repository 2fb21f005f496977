"""The plug-in that lets stock verl train both roles: no fork, no patch, only its public registries.

`overrides.py` derives verl's configuration from params.yaml, `launch.py` runs verl as a subprocess, and
`plugin.py` (loaded inside every verl process) registers the CPU platform, the `hf` rollout server, the agent
loop and the trainer.
"""
