import asyncio

import pytest

from shoal.base.mailbox import Mailbox


def test_what_is_put_is_got_in_order() -> None:
    async def play() -> list[int]:
        box: Mailbox[int] = Mailbox()
        for number in range(3):
            box.put_nowait(number)
        return [await box.get() for _ in range(3)]

    assert asyncio.run(play()) == [0, 1, 2]


def test_a_reader_waits_for_the_first() -> None:
    async def play() -> str:
        box: Mailbox[str] = Mailbox()
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        assert not reader.done()
        box.put_nowait("news")
        return await reader

    assert asyncio.run(play()) == "news"


def test_nothing_is_lost_with_a_reader_that_is_cancelled() -> None:
    async def play() -> str:
        box: Mailbox[str] = Mailbox()
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        box.put_nowait("news")  # The reader is to be woken, and is cancelled before it is.
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        return await box.get()

    assert asyncio.run(play()) == "news"


def test_a_full_one_takes_no_more_at_once() -> None:
    async def play() -> None:
        box: Mailbox[int] = Mailbox(1)
        box.put_nowait(0)
        assert box.full() and len(box) == 1
        with pytest.raises(asyncio.QueueFull):
            box.put_nowait(1)

    asyncio.run(play())


def test_writers_wait_for_room_in_turn_and_one_that_is_cancelled_lets_the_next_in() -> None:
    async def play() -> list[int]:
        box: Mailbox[int] = Mailbox(1)
        box.put_nowait(0)
        writers = [asyncio.create_task(box.put(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        writers[1].cancel()
        got = [await box.get()]
        writers[0].cancel()  # It was its turn.
        got.append(await box.get())
        assert [writer.cancelled() for writer in writers] == [True, True, False]
        return got

    assert asyncio.run(play()) == [0, 3]
