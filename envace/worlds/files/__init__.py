"""The second world: a small tree of files with shell-like tools. For transfer only, never trained on."""
