"""A chat client whose servers are played by a transport."""

import asyncio
import json
import time

import httpx

from envace.io.chat_client import ChatBill, ChatClient, ChatOptions

URL = "http://model.test/v1"
BODY = {"messages": [{"role": "user", "content": "hi \ud800"}], "max_tokens": 9}


def reply(content="hi", usage=None, finish="stop", headers=None, **message):
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return httpx.Response(200, json={"choices": [choice], "usage": usage}, headers=headers)


class Script:
    """Answers in order, the last one for ever; requests are kept."""

    def __init__(self, *answers):
        self.answers, self.sent, self.times, self.in_flight, self.most = list(answers), [], [], 0, 0

    async def __call__(self, request):
        self.sent.append(request)
        self.times.append(time.monotonic())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            answer = await answer(request) if callable(answer) else answer
        finally:
            self.in_flight -= 1
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, stream=answer.stream)

    def bodies(self):
        return [json.loads(r.content) for r in self.sent]


def client(script, *, servers=None, shorter=None, sleep=asyncio.sleep, **more):
    options = ChatOptions(**{"model": "m", "servers": servers or {URL: 1.0}, "backoff_s": 0.001, **more})
    return ChatClient(options, transport=httpx.MockTransport(script), shorter=shorter, sleep=sleep)


def ask(made, body=BODY, check=None, n=None):
    """The reply and the bill of one question; with `n` the replies or faults of many at once."""

    async def go():
        bill = ChatBill()
        async with made:
            if n is None:
                return await made.ask(body, check, bill), bill
            return await asyncio.gather(*(made.ask(body, check) for _ in range(n)), return_exceptions=True)

    return asyncio.run(go())
