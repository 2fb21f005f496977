"""A tool server over the Model Context Protocol: `python kit_finmcp_server.py sse|http PORT ROWS [KEY]`.

Run by an interpreter that holds the protocol's SDK; reads the rows' file and answers a recorded call with its
recorded reply, any other with an error. With a key it answers only those who send it.
"""

import json
import sys

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route


def recorded(path):
    replies = {}
    for row in json.load(open(path)):
        content = {m["tool_call_id"]: m["content"] for m in row["messages"] if m["role"] == "tool"}
        for message in row["messages"]:
            for call in message.get("tool_calls") or []:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                replies[name, json.dumps(arguments, sort_keys=True)] = content[call["id"]]
    return replies


def server_of(replies):
    tools = [
        types.Tool(name=n, description=f"{n} of the bank", input_schema={"type": "object"})
        for n in sorted({name for name, _ in replies})
    ]
    half = len(tools) // 2

    async def list_tools(ctx, params):
        if params is None or not params.cursor:
            return types.ListToolsResult(tools=tools[:half], next_cursor="rest")
        return types.ListToolsResult(tools=tools[half:])

    async def call_tool(ctx, params):
        reply = replies.get((params.name, json.dumps(params.arguments or {}, sort_keys=True)))
        text = types.TextContent(type="text", text=reply if reply is not None else "no such fund")
        return types.CallToolResult(content=[text], is_error=reply is None)

    return Server("bank", on_list_tools=list_tools, on_call_tool=call_tool)


def guarded(app, key):
    """Nobody without the key."""

    async def asked(scope, receive, send):
        held = dict(scope.get("headers") or {}).get(b"authorization", b"").decode()
        if scope["type"] == "http" and key and held != f"Bearer {key}":
            await JSONResponse({"error": "no"}, 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return asked


def sse_app(server):
    transport = SseServerTransport("/messages/")

    async def handle(request):
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return Response()

    return Starlette(
        routes=[Route("/sse", endpoint=handle), Mount("/messages/", app=transport.handle_post_message)]
    )


def main(kind, port, path, key=""):
    server = server_of(recorded(path))
    app = sse_app(server) if kind == "sse" else server.streamable_http_app()
    uvicorn.run(guarded(app, key), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
