"""BFCL-v4 through its own package: function calling, single turn, multi turn, with memory and with web
search.
"""
