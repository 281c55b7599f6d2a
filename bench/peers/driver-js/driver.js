// What the drivers in JavaScript share, so that they differ in nothing but the engine.
//
// It speaks the protocol of `peer-driver` and follows its rules: see `../driver/src/lib.rs` and `../driver/src/load.rs`. Its engines
// are on a PostgreSQL server, each round in a database of its own. A driver gives `drive`
//
//   execute(url, statement)   runs a statement on that server;
//   start(url, told)          starts the engine on an empty database and returns it:
//     chain(first, steps)       runs a workflow of steps that return 0, 1, 2, … and gives `first` with their sum added
//     listen(number)            starts a workflow: a step that calls `waiting`, a wait for an event, a step that calls `resumed`
//     send(number)              sends it that event
//     sleep(number, moment)     starts a workflow that sleeps until then (ms since 1970), with a step that calls `resumed`
"use strict";

const { setTimeout: pause } = require("node:timers/promises");

const [FIRST_CALLS, FIRST_CALLS_MAX_MS] = [40, 2_000];
const [WARM_UP_MS, LOAD_MAX_MS, BURST_MAX_MS] = [750, 12_000, 15_000];
const [PATIENCE_MS, SETTLE_MS, LAST_START_MS, STARTING] = [20_000, 500, 1_000, 64];
const NUMBERS = 1_000_000;

const now = () => performance.now();
const tell = (phase) => process.stdout.write(`${phase}\n`);

// What steps tell: workflows that got to their wait, and those behind it with the time.
let waits = 0;
const resumes = new Map();
let news = () => {};

async function until(condition, patience, why) {
  const deadline = now() + patience;
  while (!condition()) {
    if (now() > deadline) throw new Error(why());
    await new Promise((resolve) => {
      news = resolve;
      setTimeout(resolve, 100);
    });
  }
}

function waiting() {
  waits += 1;
  news();
}

function resumed(number) {
  resumes.set(number, now());
  news();
}

async function call(engine, first, steps) {
  const start = now();
  const sum = await engine.chain(first, steps);
  if (sum !== first + (steps * (steps - 1)) / 2) {
    throw new Error(`${steps} steps added up to ${sum} from ${first}`);
  }
  return now() - start;
}

async function firstCalls(engine, steps) {
  const start = now();
  for (let first = 0; first < FIRST_CALLS && now() - start < FIRST_CALLS_MAX_MS; first++) {
    await call(engine, first, steps);
  }
}

async function runChain(engine, { steps, count, seconds }) {
  await firstCalls(engine, steps);
  const ends = [];
  let next = NUMBERS;
  let failure;
  const keepOneOutstanding = async () => {
    for (;;) {
      const took = await call(engine, next++, steps);
      ends.push([now(), took]);
    }
  };
  const begin = now();
  for (let i = 0; i < count; i++) keepOneOutstanding().catch((error) => (failure ??= error));
  const atLeast = async (since, span, ended) => {
    while (now() - since < span || ends.length < ended) {
      if (failure) throw failure;
      if (now() - begin > LOAD_MAX_MS) {
        throw new Error(`${ends.length} workflows ended in ${LOAD_MAX_MS} ms: too few for ${count} in flight`);
      }
      await pause(2);
    }
    return now();
  };
  const start = await atLeast(begin, WARM_UP_MS, count);
  tell("start");
  const stop = await atLeast(start, seconds * 1e3, ends.length + count);
  tell("stop");
  return [steps, stop - start, ends.filter(([end]) => start <= end && end < stop).map(([, took]) => took)];
}

async function runBurst(engine, { steps, count }) {
  tell("start");
  const start = now();
  const took = [];
  const calls = Array.from({ length: count }, (_, i) => call(engine, NUMBERS + i, steps).then((one) => took.push(one)));
  const late = pause(BURST_MAX_MS).then(() => {
    throw new Error(`${took.length} of ${count} ended in ${BURST_MAX_MS} ms`);
  });
  await Promise.race([Promise.all(calls), late]);
  late.catch(() => {});
  const elapsed = now() - start;
  tell("stop");
  return [steps, elapsed, took];
}

async function runEvent(engine, { steps, count, seconds }) {
  await firstCalls(engine, steps);
  for (let i = 0; i < count; i++) await engine.listen(i);
  await until(() => waits === count, PATIENCE_MS, () => "not all workflows got to their wait");
  await pause(SETTLE_MS);
  tell("start");
  const start = now();
  const took = [];
  for (let i = 0; i < count && now() - start < seconds * 1e3; i++) {
    const sent = now();
    await engine.send(i);
    await until(() => resumes.has(i), PATIENCE_MS, () => "an event resumed nothing");
    took.push(resumes.get(i) - sent);
  }
  const elapsed = now() - start;
  tell("stop");
  return [1, elapsed, took];
}

async function runSleep(engine, { steps, count, seconds }) {
  await firstCalls(engine, steps);
  const [moment, at] = [Date.now() + seconds * 1e3, now() + seconds * 1e3];
  let [next, started] = [0, 0];
  const startSome = async () => {
    while (next < count && moment - Date.now() > LAST_START_MS) {
      await engine.sleep(next++, moment);
      started += 1;
    }
  };
  await Promise.all(Array.from({ length: STARTING }, startSome));
  await pause(Math.max(0, moment - Date.now()));
  tell("start");
  await until(
    () => resumes.size === started,
    PATIENCE_MS,
    () => `${started - resumes.size} of ${started} did not wake in ${PATIENCE_MS} ms`,
  );
  tell("stop");
  const late = [...resumes.values()].map((end) => Math.max(0, end - at));
  return [1, late.reduce((a, b) => Math.max(a, b), 0), late];
}

async function runIdle(engine, { seconds }) {
  await pause(WARM_UP_MS);
  tell("start");
  await pause(seconds * 1e3);
  tell("stop");
  return [0, seconds * 1e3, []];
}

function result([steps, elapsed, took]) {
  took.sort((a, b) => a - b);
  const percentile = (share) => {
    const rank = Math.max(Math.ceil(share * took.length), 1);
    return took.length ? Math.round(took[rank - 1] * 1e3) : 0;
  };
  return {
    workflows: took.length,
    steps: took.length * steps,
    seconds: elapsed / 1e3,
    p50_us: percentile(0.5),
    p99_us: percentile(0.99),
  };
}

const KINDS = {
  chain: runChain,
  burst: runBurst,
  "warm-burst": async (engine, told) => {
    await firstCalls(engine, told.steps);
    return runBurst(engine, told);
  },
  event: runEvent,
  sleep: runSleep,
  idle: runIdle,
};

// What does not count as the engine's start.
async function aside(work) {
  tell("aside");
  const value = await work();
  tell("back");
  return value;
}

async function measure({ execute, start }) {
  const told = {};
  for (let i = 2; i < process.argv.length; i += 2) told[process.argv[i].slice(2)] = process.argv[i + 1];
  for (const name of ["steps", "count", "seconds"]) told[name] = Number(told[name]);
  const name = `round_${process.pid}`;
  await aside(() => execute(told.database, `CREATE DATABASE ${name}`));
  const url = new URL(told.database);
  url.pathname = `/${name}`;
  try {
    const engine = await start(url.toString(), told);
    tell("ready");
    tell(JSON.stringify(result(await KINDS[told.workload](engine, told))));
    await new Promise((resolve) => process.stdin.on("close", resolve).on("end", resolve).resume());
  } finally {
    await execute(told.database, `DROP DATABASE ${name} WITH (FORCE)`).catch(() => {});
  }
}

// The body of a driver.
function drive(driver) {
  // An engine is not stopped before its database goes: what it says about that is of no interest.
  process.on("uncaughtException", () => {});
  process.on("unhandledRejection", () => {});
  measure(driver).then(
    () => process.exit(0),
    (error) => {
      process.stderr.write(`error: ${error.message}\n`);
      process.exit(1);
    },
  );
}

module.exports = { aside, drive, resumed, waiting };
