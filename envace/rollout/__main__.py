"""The command's former name: `python -m envace.play`."""

import runpy

runpy.run_module("envace.play", run_name="__main__")
