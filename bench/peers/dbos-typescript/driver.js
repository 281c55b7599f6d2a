// DBOS for TypeScript on PostgreSQL, in process, with its default configuration.
"use strict";

const { DBOS } = require("@dbos-inc/dbos-sdk");
const { drive, resumed, waiting } = require("../driver-js/driver.js");
const { execute } = require("../driver-js/pg.js");

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

const listener = DBOS.registerWorkflow(
  async (number) => {
    await DBOS.runStep(async () => waiting(), { name: "before" });
    await DBOS.recv("go", 600);
    await DBOS.runStep(async () => resumed(number), { name: "after" });
  },
  { name: "listener" },
);

const sleeper = DBOS.registerWorkflow(
  async (number, moment) => {
    await DBOS.sleep(Math.max(0, moment - Date.now()));
    await DBOS.runStep(async () => resumed(number), { name: "after" });
  },
  { name: "sleeper" },
);

async function start(url) {
  DBOS.setConfig({
    name: "peer-dbos-typescript",
    systemDatabaseUrl: url,
    applicationVersion: "1",
    logLevel: "error",
  });
  await DBOS.launch();
  return {
    chain: (first, steps) => chain(first, steps),
    listen: (number) => DBOS.startWorkflow(listener, { workflowID: `listener-${number}` })(number),
    send: (number) => DBOS.send(`listener-${number}`, number, "go"),
    sleep: (number, moment) => DBOS.startWorkflow(sleeper)(number, moment),
  };
}

drive({ execute, start });
