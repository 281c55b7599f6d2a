// The statements of a driver whose engine brings the client `pg` along.
"use strict";

const { Client } = require("pg");

async function execute(url, statement) {
  const client = new Client({ connectionString: url });
  await client.connect();
  await client.query(statement);
  await client.end();
}

module.exports = { execute };
