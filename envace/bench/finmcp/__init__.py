"""FinMCP-Bench: financial questions answered with tools of a tool server; scored on which tools
were called.
"""
