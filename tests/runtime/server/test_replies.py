"""Replies and the exchange: nothing is lost, nothing comes after the end, slow clients don't pile up memory."""

from __future__ import annotations

import asyncio
import threading

from runtime.generation import EndEvent, GenerationRequest, Reason, TokenEvent
from runtime.server.replies import Exchange, Part, Reply


class Seen:
    """Remembers what the metrics would be told."""

    def __init__(self) -> None:
        self.tokens, self.ends = 0, 0

    def token(self, part: Part, event: TokenEvent) -> None:
        self.tokens += 1

    def ended(self, part: Part, event: EndEvent) -> None:
        self.ends += 1


def token(index: int = 0) -> TokenEvent:
    return TokenEvent(5, "a", index, 1000 + index)


def end(reason: Reason = Reason.LENGTH) -> EndEvent:
    return EndEvent(reason, "", "", 1, 1, 2000)


def reply(parts: int = 1, max_buffered: int = 100) -> Reply:
    return Reply(tuple(Part(GenerationRequest((5,), 9), 0) for _ in range(parts)), max_buffered)


def test_events_keep_their_order_and_end_at_the_end() -> None:
    async def run() -> None:
        one = reply()
        for event in (token(0), token(1), end(), token(2), end(Reason.ERROR)):
            one.put(0, event)
        taken = [event for _, event in await one.take()]
        assert taken == [token(0), token(1), end()]
        assert await one.take_within(0.001) == []

    asyncio.run(run())


def test_a_buffer_that_is_full_is_dropped_whole() -> None:
    async def run() -> None:
        one = reply(max_buffered=3)
        for index in range(4):
            one.put(0, token(index))
        assert one.overflowed.is_set()
        assert one.is_closed
        assert await one.take() == []

    asyncio.run(run())


def test_an_end_fits_into_a_full_buffer() -> None:
    async def run() -> None:
        one = reply(max_buffered=2)
        for event in (token(0), token(1), end()):
            one.put(0, event)
        assert not one.overflowed.is_set()
        assert len(await one.take()) == 3

    asyncio.run(run())


def test_a_failure_reaches_only_parts_that_are_not_over() -> None:
    async def run() -> None:
        one = reply(parts=2)
        one.put(1, end())
        one.fail("gone")
        found = {index: event.reason for index, event in await one.take() if isinstance(event, EndEvent)}
        assert found == {0: Reason.ERROR, 1: Reason.LENGTH}

    asyncio.run(run())


def test_events_of_another_thread_arrive_and_are_counted() -> None:
    async def run() -> None:
        seen, aborted = Seen(), list[int]()
        exchange = Exchange(seen, aborted.append)
        replies = [reply() for _ in range(20)]
        for one in replies:
            exchange.open(one)
        assert (exchange.num_live, exchange.num_waiting) == (20, 20)
        sinks = [exchange.sink(one, 0) for one in replies]

        def engine() -> None:
            for index in range(50):
                for sink in sinks:
                    sink(token(index))
            for sink in sinks:
                sink(end())

        thread = threading.Thread(target=engine)
        thread.start()
        for one in replies:
            events = []
            while not (events and isinstance(events[-1], EndEvent)):
                events += [event for _, event in await one.take()]
            assert [event.index for event in events[:-1] if isinstance(event, TokenEvent)] == list(range(50))
        thread.join()
        assert await exchange.wait_idle(0.01)
        assert (exchange.num_live, exchange.num_waiting) == (0, 0)
        assert (seen.tokens, seen.ends, aborted) == (1000, 20, [])

    asyncio.run(run())


def test_dropping_gives_up_what_is_not_over() -> None:
    async def run() -> None:
        aborted = list[int]()
        exchange = Exchange(Seen(), aborted.append)
        one = reply(parts=3)
        exchange.open(one)
        for index, part in enumerate(one.parts):
            part.number = 70 + index
        exchange.sink(one, 1)(end())
        await asyncio.sleep(0)
        exchange.drop(one)
        assert aborted == [70, 72]
        assert not await exchange.wait_idle(0.001)  # the engine hasn't said so yet
        for index in (0, 2):
            exchange.sink(one, index)(end(Reason.ABORT))
        assert await exchange.wait_idle(1)
        assert exchange.num_waiting == 0

    asyncio.run(run())


def test_an_engine_that_outlives_the_loop_is_not_hurt() -> None:
    async def run() -> tuple[Exchange, Reply]:
        exchange, one = Exchange(Seen(), lambda _: None), reply()
        exchange.open(one)
        sinks.append(exchange.sink(one, 0))
        return exchange, one

    sinks: list = []
    asyncio.run(run())
    sinks[0](token())
    sinks[0](end())
