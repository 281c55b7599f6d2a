// openworkflow on PostgreSQL, client and worker in process, with its default options but one.
"use strict";

const postgres = require("postgres");
const { drive, resumed, waiting } = require("../driver-js/driver.js");

// As shipped a worker runs one workflow at a time, too few for the load: see `docs/benchmarks.md`.
const CONCURRENCY = 64;

// This client takes the directory of a socket from the environment, not from the URL, and only if that has no host.
function understood(told) {
  const url = new URL(told);
  const socket = url.searchParams.get("host");
  if (!socket) return told;
  const { port: PGPORT, username: PGUSER, password: PGPASSWORD } = url;
  Object.assign(process.env, { PGHOST: socket, PGPORT, PGUSER, PGPASSWORD });
  url.searchParams.delete("host");
  return `postgres://${url.pathname}${url.search}`;
}

async function execute(url, statement) {
  const client = postgres(understood(url), { max: 1 });
  await client.unsafe(statement);
  await client.end();
}

// A module, which `import` alone would not look for where the packages are.
const load = (name) => import(require.resolve(name));

function define(engine) {
  const chain = engine.defineWorkflow({ name: "chain" }, async ({ input: { first, steps }, step }) => {
    let sum = first;
    for (let i = 0; i < steps; i++) sum += await step.run({ name: `step ${i}` }, () => i);
    return sum;
  });
  const listener = engine.defineWorkflow({ name: "listener" }, async ({ input: { number }, step }) => {
    await step.run({ name: "before" }, () => waiting());
    await step.waitForSignal({ signal: `go ${number}` });
    await step.run({ name: "after" }, () => resumed(number));
  });
  const sleeper = engine.defineWorkflow({ name: "sleeper" }, async ({ input: { number, moment }, step }) => {
    await step.sleep("sleep", `${Math.max(0, moment - Date.now())}ms`);
    await step.run({ name: "after" }, () => resumed(number));
  });
  return { chain, listener, sleeper };
}

async function start(url) {
  const { OpenWorkflow } = await load("openworkflow");
  const { BackendPostgres } = await load("openworkflow/postgres");
  const engine = new OpenWorkflow({ backend: await BackendPostgres.connect(understood(url)) });
  const { chain, listener, sleeper } = define(engine);
  await engine.newWorker({ concurrency: CONCURRENCY }).start();
  return {
    chain: async (first, steps) => (await chain.run({ first, steps })).result(),
    listen: (number) => listener.run({ number }),
    send: (number) => engine.sendSignal({ signal: `go ${number}`, data: number }),
    sleep: (number, moment) => sleeper.run({ number, moment }),
  };
}

drive({ execute, start });
