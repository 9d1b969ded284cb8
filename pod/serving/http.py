"""The face of the service: the OpenAI API over HTTP, a stream as server-sent events, meters for Prometheus."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pod.serving.protocol import Asked, Chat, Completion, Kind, Refused, Reply, short
from pod.serving.service import Closed, Full, Piece, Service

LARGEST_BODY = 16 << 20  # bytes


def app(service: Service, file, name: str) -> Starlette:
    """`file` has tokenizer and template; `name` is what clients call the model."""
    face = Face(service, file, name)
    routes = [
        Route("/v1/chat/completions", face.chat, methods=["POST"]),
        Route("/v1/completions", face.complete, methods=["POST"]),
        Route("/v1/models", face.models),
        Route("/v1/models/{model:path}", face.model),
        Route("/health", face.health),
        Route("/metrics", face.metrics),
    ]
    errors = {Refused: refused, HTTPException: no_such_place, Exception: ours}
    return Starlette(routes=routes, exception_handlers=errors, lifespan=face.lifespan)


async def refused(request: Request, error: Refused) -> Response:
    later = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body, error.status, later)


async def no_such_place(request: Request, error: HTTPException) -> Response:
    words = f"{request.method} {request.url.path[:60]}: {error.detail.lower()}"
    return JSONResponse(Refused(words, None, "unknown_url").body, error.status_code, error.headers)


async def ours(request: Request, error: Exception) -> Response:
    """A mistake of ours: its traceback is for our eyes, on the server's stderr."""
    return await refused(request, Refused("the server made a mistake", None, None, 500, "server_error"))


class Answer:
    """The pieces of an answer as they come, from the engine's thread to this one."""

    def __init__(self, service: Service, asked: Asked):
        self.service, self._pieces, here = service, asyncio.Queue(), asyncio.get_running_loop()

        def tell(piece: Piece) -> None:
            with suppress(RuntimeError):  # nobody is here any more
                here.call_soon_threadsafe(self._pieces.put_nowait, piece)

        self.job = service.ask(asked.prompt, asked.output, asked.sampling, asked.stops, tell)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        end = None
        while end is None:
            piece = await self._pieces.get()
            end = piece.end
            if end == "error":
                raise Refused("the engine has failed", None, None, 500, "server_error")
            yield piece

    def cancel(self) -> None:
        self.service.cancel(self.job)


class Stream(StreamingResponse):
    """Whoever hangs up, even before the first word, has cancelled."""

    def __init__(self, answer: Answer, reply: Reply):
        super().__init__(_events(answer, reply), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.answer = answer

    async def __call__(self, *connection) -> None:
        try:
            await super().__call__(*connection)
        finally:
            self.answer.cancel()


class Face:
    def __init__(self, service: Service, file, name: str):
        self.service, self.file, self.name = service, file, name
        # A long prompt takes a while, and others stream meanwhile; but each thread keeps memory of its own.
        self.readers = ThreadPoolExecutor(2, "reader")

    @asynccontextmanager
    async def lifespan(self, app: Starlette):
        yield
        await run_in_threadpool(self.service.close)
        self.readers.shutdown(wait=False, cancel_futures=True)

    async def chat(self, request: Request) -> Response:
        if not self.file.has_template:
            raise Refused(f"messages: got a chat, and {self.name} has no chat template; allowed is /v1/completions")
        return await self._answer(request, Chat())

    async def complete(self, request: Request) -> Response:
        return await self._answer(request, Completion())

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        if (name := request.path_params["model"]) != self.name:
            raise Refused(f"model: got {short(name)}, allowed is {self.name!r}", "model", "model_not_found", 404)
        return JSONResponse(self._card())

    async def health(self, request: Request) -> Response:
        if self.service.failure:
            raise Refused("the engine has failed", None, None, 503, "server_error")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.service.meters.text(), media_type="text/plain; version=0.0.4")

    def _card(self) -> dict:
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "pod"}

    async def _answer(self, request: Request, kind: Kind) -> Response:
        body = await _body(request)
        read = partial(kind.read, body, self.name, self.file, self.service.longest)
        asked = await asyncio.get_running_loop().run_in_executor(self.readers, read)
        answer, reply = self._ask(asked, kind), Reply(kind, asked)
        if asked.stream:
            return Stream(answer, reply)
        try:
            return await _unless_gone(request, _whole(answer, reply))
        finally:
            answer.cancel()

    def _ask(self, asked: Asked, kind: Kind) -> Answer:
        try:
            return Answer(self.service, asked)
        except ValueError as error:
            raise Refused(f"{kind.needed}: {error}", kind.needed, "invalid_value") from None
        except Full as error:
            raise Refused(str(error), None, "rate_limit_exceeded", 429, "rate_limit_error") from None
        except Closed as error:
            raise Refused(str(error), None, None, 503, "server_error") from None


async def _body(request: Request) -> bytes:
    """The body, but not more of it than a server has memory for."""
    too_long = Refused(f"body: got over {LARGEST_BODY} bytes, allowed are so many", None, None, 413)
    if int(request.headers.get("content-length", 0)) > LARGEST_BODY:
        raise too_long  # before anybody waits for it
    body = bytearray()
    with suppress(ClientDisconnect):
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise too_long
    return bytes(body)


async def _whole(answer: Answer, reply: Reply) -> Response:
    texts = []
    async for piece in answer:
        texts.append(piece.text)
    return JSONResponse(reply.whole("".join(texts), piece.end, piece.made))


async def _unless_gone(request: Request, answering) -> Response:
    """The answer, unless its reader hangs up first."""
    tasks = [asyncio.ensure_future(answering), asyncio.ensure_future(_gone(request))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else Response(status_code=499)  # which nobody reads
    finally:
        for task in tasks:
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(answer: Answer, reply: Reply) -> AsyncIterator[str]:
    for chunk in reply.opening():
        yield _event(chunk)
    try:
        async for piece in answer:
            if piece.text or piece.end:
                yield _event(reply.change(piece.text, piece.end))
        for chunk in reply.closing(piece.made):
            yield _event(chunk)
        yield "data: [DONE]\n\n"
    except Refused as error:  # too late for a status
        yield _event(error.body)


def _event(chunk: dict) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
