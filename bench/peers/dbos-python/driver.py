"""DBOS for Python on PostgreSQL, in process, with its default configuration.

Speaks the protocol of `peer-driver` and follows its rules: see `../driver/src/lib.rs` and `../driver/src/load.rs`.
"""

import asyncio
import json
import math
import os
import sys
import time
from urllib.parse import urlsplit

import psycopg
from dbos import DBOS, SetWorkflowID

FIRST_CALLS, FIRST_CALLS_MAX_S = 40, 2.0
WARM_UP_S, LOAD_MAX_S, BURST_MAX_S = 0.75, 12.0, 15.0
PATIENCE_S, SETTLE_S, LAST_START_S, STARTING = 20.0, 0.5, 1.0, 64
NUMBERS = 1_000_000

marks: asyncio.Queue = asyncio.Queue()


def tell(phase):
    print(phase, flush=True)


def options():
    args = sys.argv[1:]
    return {name.removeprefix("--"): value for name, value in zip(args[::2], args[1::2])}


@DBOS.step()
async def number(i: int) -> int:
    return i


@DBOS.step()
async def before() -> None:
    marks.put_nowait(None)


@DBOS.step()
async def after(number: int) -> None:
    marks.put_nowait((number, time.monotonic()))


@DBOS.workflow()
async def chain(first: int, steps: int) -> int:
    total = first
    for i in range(steps):
        total += await number(i)
    return total


@DBOS.workflow()
async def listener(number: int) -> None:
    await before()
    await DBOS.recv_async("go", 600)
    await after(number)


@DBOS.workflow()
async def sleeper(number: int, moment: float) -> None:
    await DBOS.sleep_async(max(0.0, moment - time.time()))
    await after(number)


async def call(first, steps):
    start = time.monotonic()
    handle = await DBOS.start_workflow_async(chain, first, steps)
    total = await handle.get_result()
    assert total == first + steps * (steps - 1) // 2, f"{steps} steps added up to {total} from {first}"
    return time.monotonic() - start


async def first_calls(steps):
    start = time.monotonic()
    for first in range(FIRST_CALLS):
        await call(first, steps)
        if time.monotonic() - start > FIRST_CALLS_MAX_S:
            break


async def run_chain(steps, count, seconds):
    await first_calls(steps)
    ends, numbers = [], iter(range(NUMBERS, 1 << 60))

    async def keep_one_outstanding():
        while True:
            took = await call(next(numbers), steps)
            ends.append((time.monotonic(), took))

    callers = [asyncio.create_task(keep_one_outstanding()) for _ in range(count)]
    begin = time.monotonic()

    async def at_least(since, span, ended):
        while time.monotonic() - since < span or len(ends) < ended:
            for caller in callers:
                if caller.done():
                    caller.result()
            if time.monotonic() - begin > LOAD_MAX_S:
                raise TimeoutError(f"{len(ends)} workflows ended in {LOAD_MAX_S} s: too few for {count} in flight")
            await asyncio.sleep(0.002)
        return time.monotonic()

    start = await at_least(begin, WARM_UP_S, count)
    tell("start")
    stop = await at_least(start, seconds, len(ends) + count)
    tell("stop")
    return steps, stop - start, [took for end, took in ends if start <= end < stop]


async def run_burst(steps, count):
    tell("start")
    start = time.monotonic()
    calls = [asyncio.create_task(call(NUMBERS + i, steps)) for i in range(count)]
    done, pending = await asyncio.wait(calls, timeout=BURST_MAX_S)
    if pending:
        raise TimeoutError(f"{len(done)} of {count} ended in {BURST_MAX_S} s")
    elapsed = time.monotonic() - start
    tell("stop")
    return steps, elapsed, [one.result() for one in done]


async def run_event(steps, count, seconds):
    await first_calls(steps)
    for i in range(count):
        with SetWorkflowID(f"listener-{i}"):
            await DBOS.start_workflow_async(listener, i)
    for _ in range(count):
        await asyncio.wait_for(marks.get(), PATIENCE_S)
    await asyncio.sleep(SETTLE_S)
    tell("start")
    start, latencies = time.monotonic(), []
    for i in range(count):
        sent = time.monotonic()
        await DBOS.send_async(f"listener-{i}", i, "go")
        _, at = await asyncio.wait_for(marks.get(), PATIENCE_S)
        latencies.append(at - sent)
        if time.monotonic() - start > seconds:
            break
    elapsed = time.monotonic() - start
    tell("stop")
    return 1, elapsed, latencies


async def run_sleep(steps, count, seconds):
    await first_calls(steps)
    moment, moment_monotonic = time.time() + seconds, time.monotonic() + seconds
    numbers, started = iter(range(count)), []

    async def start_some():
        for i in numbers:
            if moment - time.time() <= LAST_START_S:
                break
            await DBOS.start_workflow_async(sleeper, i, moment)
            started.append(i)

    await asyncio.gather(*(start_some() for _ in range(STARTING)))
    await asyncio.sleep(max(0.0, moment - time.time()))
    tell("start")
    late = []
    async with asyncio.timeout(PATIENCE_S):
        while len(late) < len(started):
            _, at = await marks.get()
            late.append(max(0.0, at - moment_monotonic))
    tell("stop")
    return 1, max(late), late


async def run_idle(seconds):
    await asyncio.sleep(WARM_UP_S)
    tell("start")
    await asyncio.sleep(seconds)
    tell("stop")
    return 0, seconds, []


async def measure(told):
    steps, count, seconds = int(told["steps"]), int(told["count"]), float(told["seconds"])
    match told["workload"]:
        case "chain":
            return await run_chain(steps, count, seconds)
        case "burst":
            return await run_burst(steps, count)
        case "warm-burst":
            await first_calls(steps)
            return await run_burst(steps, count)
        case "event":
            return await run_event(steps, count, seconds)
        case "sleep":
            return await run_sleep(steps, count, seconds)
        case "idle":
            return await run_idle(seconds)
        case other:
            raise ValueError(f"--workload {other} is not known")


def result(steps, seconds, latencies):
    latencies = sorted(latencies)

    def percentile(share):
        rank = max(math.ceil(share * len(latencies)), 1)
        return int(latencies[rank - 1] * 1e6) if latencies else 0

    return {
        "workflows": len(latencies),
        "steps": len(latencies) * steps,
        "seconds": seconds,
        "p50_us": percentile(0.5),
        "p99_us": percentile(0.99),
    }


async def main():
    told = options()
    server, name = told["database"], f"round_{os.getpid()}"
    tell("aside")
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    tell("back")
    url = urlsplit(server)._replace(scheme="postgresql", path=f"/{name}").geturl()
    DBOS(config={"name": "peer-dbos-python", "system_database_url": url, "application_version": "1", "log_level": "ERROR"})
    DBOS.launch()
    tell("ready")
    try:
        measured = await measure(told)
        print(json.dumps(result(*measured)), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def run():
    try:
        asyncio.run(asyncio.wait_for(main(), 600))
    except BaseException as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


run()
