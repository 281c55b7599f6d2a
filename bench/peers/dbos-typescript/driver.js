// DBOS for TypeScript on PostgreSQL, in process, with its default configuration.
//
// Speaks the protocol of `peer-driver` and follows its rules: see `../driver/src/lib.rs` and `../driver/src/load.rs`.
"use strict";

const { DBOS } = require("@dbos-inc/dbos-sdk");
const { Client } = require("pg");
const { setTimeout: pause } = require("node:timers/promises");

const [FIRST_CALLS, FIRST_CALLS_MAX_MS] = [40, 2_000];
const [WARM_UP_MS, LOAD_MAX_MS, BURST_MAX_MS] = [750, 12_000, 15_000];
const [PATIENCE_MS, SETTLE_MS, LAST_START_MS, STARTING] = [20_000, 500, 1_000, 64];
const NUMBERS = 1_000_000;

const now = () => performance.now();
const tell = (phase) => process.stdout.write(`${phase}\n`);

// What steps tell: workflows that got to their wait, and those behind it with the time.
let waiting = 0;
const resumed = new Map();
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

const chain = DBOS.registerWorkflow(
  async (first, steps) => {
    let sum = first;
    for (let i = 0; i < steps; i++) {
      sum += await DBOS.runStep(async () => i, { name: `step ${i}` });
    }
    return sum;
  },
  { name: "chain" },
);

const before = async () => {
  waiting += 1;
  news();
};

const after = (number) => async () => {
  resumed.set(number, now());
  news();
};

const listener = DBOS.registerWorkflow(
  async (number) => {
    await DBOS.runStep(before, { name: "before" });
    await DBOS.recv("go", 600);
    await DBOS.runStep(after(number), { name: "after" });
  },
  { name: "listener" },
);

const sleeper = DBOS.registerWorkflow(
  async (number, moment) => {
    await DBOS.sleep(Math.max(0, moment - Date.now()));
    await DBOS.runStep(after(number), { name: "after" });
  },
  { name: "sleeper" },
);

async function call(first, steps) {
  const start = now();
  const sum = await chain(first, steps);
  if (sum !== first + (steps * (steps - 1)) / 2) {
    throw new Error(`${steps} steps added up to ${sum} from ${first}`);
  }
  return now() - start;
}

async function firstCalls(steps) {
  const start = now();
  for (let first = 0; first < FIRST_CALLS && now() - start < FIRST_CALLS_MAX_MS; first++) {
    await call(first, steps);
  }
}

async function runChain({ steps, count, seconds }) {
  await firstCalls(steps);
  const ends = [];
  let next = NUMBERS;
  let failure;
  const keepOneOutstanding = async () => {
    for (;;) {
      const took = await call(next++, steps);
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

async function runBurst({ steps, count }) {
  tell("start");
  const start = now();
  const took = [];
  const calls = Array.from({ length: count }, (_, i) => call(NUMBERS + i, steps).then((one) => took.push(one)));
  const late = pause(BURST_MAX_MS).then(() => {
    throw new Error(`${took.length} of ${count} ended in ${BURST_MAX_MS} ms`);
  });
  await Promise.race([Promise.all(calls), late]);
  late.catch(() => {});
  const elapsed = now() - start;
  tell("stop");
  return [steps, elapsed, took];
}

async function runEvent({ steps, count, seconds }) {
  await firstCalls(steps);
  for (let i = 0; i < count; i++) {
    await DBOS.startWorkflow(listener, { workflowID: `listener-${i}` })(i);
  }
  await until(() => waiting === count, PATIENCE_MS, () => "not all workflows got to their wait");
  await pause(SETTLE_MS);
  tell("start");
  const start = now();
  const took = [];
  for (let i = 0; i < count && now() - start < seconds * 1e3; i++) {
    const sent = now();
    await DBOS.send(`listener-${i}`, i, "go");
    await until(() => resumed.has(i), PATIENCE_MS, () => "an event resumed nothing");
    took.push(resumed.get(i) - sent);
  }
  const elapsed = now() - start;
  tell("stop");
  return [1, elapsed, took];
}

async function runSleep({ steps, count, seconds }) {
  await firstCalls(steps);
  const [moment, at] = [Date.now() + seconds * 1e3, now() + seconds * 1e3];
  let [next, started] = [0, 0];
  const startSome = async () => {
    while (next < count && moment - Date.now() > LAST_START_MS) {
      await DBOS.startWorkflow(sleeper)(next++, moment);
      started += 1;
    }
  };
  await Promise.all(Array.from({ length: STARTING }, startSome));
  await pause(Math.max(0, moment - Date.now()));
  tell("start");
  await until(
    () => resumed.size === started,
    PATIENCE_MS,
    () => `${started - resumed.size} of ${started} did not wake in ${PATIENCE_MS} ms`,
  );
  tell("stop");
  const late = [...resumed.values()].map((end) => Math.max(0, end - at));
  return [1, late.reduce((a, b) => Math.max(a, b), 0), late];
}

async function runIdle({ seconds }) {
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
  "warm-burst": async (told) => {
    await firstCalls(told.steps);
    return runBurst(told);
  },
  event: runEvent,
  sleep: runSleep,
  idle: runIdle,
};

async function onServer(server, statement) {
  const client = new Client({ connectionString: server });
  await client.connect();
  await client.query(statement);
  await client.end();
}

async function main() {
  const told = {};
  for (let i = 2; i < process.argv.length; i += 2) told[process.argv[i].slice(2)] = process.argv[i + 1];
  for (const name of ["steps", "count", "seconds"]) told[name] = Number(told[name]);
  const name = `round_${process.pid}`;
  tell("aside");
  await onServer(told.database, `CREATE DATABASE ${name}`);
  tell("back");
  const url = new URL(told.database);
  url.pathname = `/${name}`;
  DBOS.setConfig({
    name: "peer-dbos-typescript",
    systemDatabaseUrl: url.toString(),
    applicationVersion: "1",
    logLevel: "error",
  });
  await DBOS.launch();
  tell("ready");
  try {
    tell(JSON.stringify(result(await KINDS[told.workload](told))));
    await new Promise((resolve) => process.stdin.on("close", resolve).on("end", resolve).resume());
  } finally {
    await onServer(told.database, `DROP DATABASE ${name} WITH (FORCE)`).catch(() => {});
  }
}

process.on("uncaughtException", () => {});
process.on("unhandledRejection", () => {});
main().then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`error: ${error.message}\n`);
    process.exit(1);
  },
);
