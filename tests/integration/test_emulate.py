"""The emulated link with real sockets: rates, delays, fairness, cuts, stalls, closes."""

import asyncio
import socket
import statistics
import time
from contextlib import asynccontextmanager

import pytest

from pdd.core.errors import ConfigError, InvalidRequest, Unavailable
from pdd.core.topology import LOOPBACK, Address
from pdd.transport.emulate import Forward, LinkPlan, run_link
from pdd.transport.emulate_control import Change, Cut, CutKind, LinkCondition, Restore, Show, Stall, ask_link
from pdd.transport.shaping import LineSettings

pytestmark = pytest.mark.anyio
MBIT = 1_000_000.0


def free_port():
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        return holder.getsockname()[1]


class Peer:
    """The real endpoint behind the link: a first byte of E makes it echo, of S swallow, of T talk first, of C close."""

    def __init__(self):
        self.received = {}
        self.ended = []
        self.gone = asyncio.Event()

    async def serve(self, reader, writer):
        kind = await reader.read(1)
        number = len(self.received)
        self.received[number] = 0
        try:
            while kind != b"C" and (data := await reader.read(64 * 1024)):
                self.received[number] += len(data)
                if kind == b"E":
                    writer.write(data)
                    await writer.drain()
            self.ended.append("end")
            if kind == b"H":
                writer.write(b"still here")
                await writer.drain()
        except ConnectionError:
            self.ended.append("reset")
        finally:
            self.gone.set()
            writer.close()

    @property
    def total(self):
        return sum(self.received.values())


class Bench:
    """One link and a peer behind it, in cluster B; clients connect from A."""

    def __init__(self, peer, listen, control):
        self.peer, self.listen, self.control = peer, listen, control

    async def connect(self, kind=b"E"):
        reader, writer = await asyncio.open_connection(self.listen.host, self.listen.port)
        writer.write(kind)
        return reader, writer

    async def echo(self, connection, payload=b"x" * 64):
        reader, writer = connection
        began = time.perf_counter()
        writer.write(payload)
        await reader.readexactly(len(payload))
        return time.perf_counter() - began

    async def ask(self, request):
        return await ask_link(self.control, request)

    async def bulk(self):
        _, writer = await self.connect(b"S")
        writer.transport.set_write_buffer_limits(high=64 * 1024)
        try:
            while True:
                writer.write(bytes(64 * 1024))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def bench(rate=200 * MBIT, delay=0.0, jitter=0.0, target=None):
    peer = Peer()
    server = await asyncio.start_server(peer.serve, LOOPBACK, 0)
    listen, control = Address(host=LOOPBACK, port=free_port()), Address(host=LOOPBACK, port=free_port())
    plan = LinkPlan(
        name="wan",
        clusters=("A", "B"),
        settings=LineSettings(rate_bits_per_s=rate, delay_s=delay, jitter_s=jitter),
        forwards=(
            Forward(
                endpoint="peer",
                listen=listen,
                target=target or Address(host=LOOPBACK, port=server.sockets[0].getsockname()[1]),
                toward="B",
            ),
        ),
        control=control,
    )
    async with server, asyncio.timeout(60), asyncio.TaskGroup() as group:
        ready = asyncio.Event()
        link = group.create_task(run_link(plan, on_ready=ready.set))
        await ready.wait()
        try:
            yield Bench(peer, listen, control)
        finally:
            link.cancel()
            server.close()


async def rate_of(link, seconds):
    began, before = time.perf_counter(), dict(link.peer.received)
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    return [(link.peer.received[key] - before.get(key, 0)) * 8 / took for key in link.peer.received]


@pytest.mark.parametrize("rate", [20 * MBIT, 200 * MBIT])
async def test_a_bulk_transfer_gets_the_rate(rate):
    async with bench(rate=rate, delay=0.015) as link, asyncio.TaskGroup() as group:
        bulk = group.create_task(link.bulk())
        await asyncio.sleep(0.5)
        (found,) = await rate_of(link, 2.0)
        bulk.cancel()
    assert found == pytest.approx(rate, rel=0.05)


async def test_four_transfers_share_the_rate_equally():
    async with bench(rate=40 * MBIT, delay=0.005) as link, asyncio.TaskGroup() as group:
        tasks = [group.create_task(link.bulk()) for _ in range(4)]
        await asyncio.sleep(0.5)
        rates = await rate_of(link, 2.0)
        for task in tasks:
            task.cancel()
    assert sum(rates) == pytest.approx(40 * MBIT, rel=0.05)
    assert max(rates) < 1.05 * min(rates)


async def test_a_small_message_takes_a_round_trip_idle_and_little_more_beside_bulk():
    async with bench(rate=20 * MBIT, delay=0.015) as link, asyncio.TaskGroup() as group:
        connection = await link.connect()
        await link.echo(connection)
        idle = statistics.median([await link.echo(connection) for _ in range(11)])
        bulk = group.create_task(link.bulk())
        await asyncio.sleep(0.5)
        busy = statistics.median([await link.echo(connection) for _ in range(11)])
        bulk.cancel()
        connection[1].close()
    assert 0.030 <= idle < 0.038
    assert 0.030 <= busy < 0.045


async def test_both_directions_have_the_full_rate():
    async with bench(rate=20 * MBIT) as link, asyncio.TaskGroup() as group:
        up = group.create_task(link.bulk())
        reader, writer = await link.connect(b"E")
        payload = bytes(500_000)
        began = time.perf_counter()
        writer.write(payload)
        await reader.readexactly(len(payload))
        took = time.perf_counter() - began
        up.cancel()
        writer.close()
    # 4 Mbit at half of 20 Mbit/s there, and back at the same time: 0.4 s, where one shared rate would take 0.6 s.
    assert took == pytest.approx(0.4, rel=0.2)


async def test_opening_a_connection_costs_one_round_trip():
    async with bench(delay=0.05) as link:
        began = time.perf_counter()
        connection = await link.connect()
        await link.echo(connection, b"hello")
        assert 0.2 <= time.perf_counter() - began < 0.25
        connection[1].close()


async def test_what_is_buffered_is_about_the_bandwidth_delay_product():
    async with bench(rate=20 * MBIT, delay=0.1) as link, asyncio.TaskGroup() as group:
        bulk = group.create_task(link.bulk())
        await asyncio.sleep(1.0)
        await link.ask(Cut(kind=CutKind.DROP))
        on_line = sum((await link.ask(Show())).sent_bytes.values()) - link.peer.total
        bulk.cancel()
    assert on_line < 1.2 * 20 * MBIT / 8 * 0.1


async def test_bytes_arrive_whole_and_in_order_through_jitter():
    async with bench(rate=200 * MBIT, delay=0.002, jitter=0.01) as link:
        reader, writer = await link.connect()
        payload = bytes(range(256)) * 4000
        async with asyncio.TaskGroup() as group:
            received = group.create_task(reader.readexactly(len(payload)))
            writer.write(payload)
        assert received.result() == payload
        writer.close()


async def test_a_stall_holds_everything_and_then_goes_on():
    async with bench(delay=0.005) as link:
        connection = await link.connect()
        await link.echo(connection)
        state = await link.ask(Stall(seconds=0.4))
        assert state.condition is LinkCondition.STALLED
        assert 0.3 < await link.echo(connection) < 0.6
        assert (await link.ask(Show())).condition is LinkCondition.UP
        assert await link.echo(connection) < 0.1
        connection[1].close()


async def test_a_frozen_line_moves_nothing_until_it_is_restored():
    async with bench(delay=0.005) as link:
        connection = await link.connect()
        await link.echo(connection)
        assert (await link.ask(Cut(kind=CutKind.FREEZE))).condition is LinkCondition.FROZEN
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await link.echo(connection, b"one")
        state = await link.ask(Restore())
        assert (state.condition, state.connections) == (LinkCondition.UP, 1)
        assert await connection[0].readexactly(3) == b"one"
        connection[1].close()


async def test_a_dropped_line_resets_its_connections_and_new_ones_until_it_is_restored():
    async with bench() as link:
        reader, writer = await link.connect()
        await link.echo((reader, writer))
        state = await link.ask(Cut(kind=CutKind.DROP))
        assert state.condition is LinkCondition.DROPPED
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        writer.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await link.echo(await link.connect())
        assert (await link.ask(Show())).connections == 0
        await link.ask(Restore())
        connection = await link.connect()
        assert await link.echo(connection) < 0.1
        connection[1].close()


async def test_settings_change_while_data_flows():
    async with bench(rate=20 * MBIT) as link, asyncio.TaskGroup() as group:
        bulk = group.create_task(link.bulk())
        await asyncio.sleep(0.3)
        state = await link.ask(Change(rate_bits_per_s=80 * MBIT))
        assert (state.rate_bits_per_s, state.delay_s) == (80 * MBIT, 0.0)
        await asyncio.sleep(0.2)
        (found,) = await rate_of(link, 1.5)
        bulk.cancel()
    assert found == pytest.approx(80 * MBIT, rel=0.06)


async def test_a_half_close_is_passed_on_and_the_other_direction_stays_open():
    async with bench(delay=0.01) as link:
        reader, writer = await link.connect(b"H")
        writer.write(b"payload")
        writer.write_eof()
        assert await reader.read() == b"still here"
        assert link.peer.received == {0: 7}
        assert link.peer.ended == ["end"]
        writer.close()


async def test_a_peer_that_closes_closes_the_other_end():
    async with bench(delay=0.01) as link:
        reader, writer = await link.connect(b"C")
        assert await reader.read() == b""
        writer.close()


async def test_a_reset_reaches_the_other_end():
    async with bench(delay=0.01) as link:
        connection = await link.connect()
        await link.echo(connection)
        connection[1].transport.abort()
        async with asyncio.timeout(2):
            await link.peer.gone.wait()
            while (await link.ask(Show())).connections:
                pass


async def test_an_endpoint_that_is_not_up_looks_like_a_lost_connection():
    nobody = Address(host=LOOPBACK, port=free_port())
    async with bench(target=nobody) as link:
        reader, writer = await link.connect()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_garbage_at_the_control_port_is_refused_and_the_link_lives_on():
    async with bench() as link:
        reader, writer = await asyncio.open_connection(link.control.host, link.control.port)
        writer.write(b'{"type":"set","rate_bits_per_s":-1}\nnonsense\n')
        assert b'"refusal"' in await reader.readline()
        assert b'"refusal"' in await reader.readline()
        writer.write(b"x" * 10_000)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        with pytest.raises(InvalidRequest, match="delay_s"):
            await link.ask(Change(delay_s=-1.0))
        assert (await link.ask(Show())).condition is LinkCondition.UP


async def test_asking_a_link_that_does_not_run_says_so():
    with pytest.raises(Unavailable, match="does not answer"):
        await ask_link(Address(host=LOOPBACK, port=free_port()), Show())


async def test_a_port_in_use_is_refused_by_name():
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen(1)
        taken = Address(host=LOOPBACK, port=holder.getsockname()[1])
        plan = LinkPlan(
            name="wan", clusters=("A", "B"), settings=LineSettings(rate_bits_per_s=MBIT), forwards=(), control=taken
        )
        with pytest.raises(ConfigError, match=str(taken.port)):
            await run_link(plan, on_ready=lambda: None)
