// absurd on PostgreSQL, client and worker in process, with its default options.
"use strict";

const { execFileSync } = require("node:child_process");
const { Absurd } = require("absurd-sdk");
const { aside, drive, resumed, waiting } = require("../driver-js/driver.js");
const { execute } = require("../driver-js/pg.js");

// The package of npm leaves it to `absurdctl` to make its tables. It has the statements; it would run them with `psql`.
const PRINT_SCHEMA = "import absurdctl; print(absurdctl.BUNDLED_SCHEMA_SQL)";

function register(app) {
  app.registerTask({ name: "chain" }, async ({ first, steps }, context) => {
    let sum = first;
    for (let i = 0; i < steps; i++) sum += await context.step(`step ${i}`, async () => i);
    return sum;
  });
  app.registerTask({ name: "listener" }, async ({ number }, context) => {
    await context.step("before", async () => waiting());
    await context.awaitEvent(`go ${number}`);
    await context.step("after", async () => resumed(number));
  });
  app.registerTask({ name: "sleeper" }, async ({ number, moment }, context) => {
    await context.sleepUntil("sleep", new Date(moment));
    await context.step("after", async () => resumed(number));
  });
}

async function chain(app, first, steps) {
  const { taskID } = await app.spawn("chain", { first, steps });
  const { state, result } = await app.awaitTaskResult(taskID);
  if (state !== "completed") throw new Error(`a task ended as ${state}`);
  return result;
}

async function start(url, { python }) {
  const schema = await aside(async () => execFileSync(python, ["-c", PRINT_SCHEMA], { encoding: "utf8" }));
  await execute(url, schema);
  const app = new Absurd({ db: url });
  await app.createQueue();
  register(app);
  await app.startWorker();
  return {
    chain: (first, steps) => chain(app, first, steps),
    listen: (number) => app.spawn("listener", { number }),
    send: (number) => app.emitEvent(`go ${number}`, number),
    sleep: (number, moment) => app.spawn("sleeper", { number, moment }),
  };
}

drive({ execute, start });
