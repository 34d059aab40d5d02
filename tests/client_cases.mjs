/* Runs the steps of a case of client_cases.json with docs/client.mjs. Its
argument is {"user": [userId, token, sessionid], "steps": …} as JSON. It prints
what each step returned or threw; test_client.py checks it. */

import { inspect } from "node:util";
import * as client from "../docs/client.mjs";

/** Return the value; "$1.updatedAt" is a property of the result of step 1. */
function resolve(value, results) {
  const reference = /^\$(\d+)((\.\w+)*)$/.exec(value);
  if (!reference) {
    return value;
  }
  const { returned, raised } = results[Number(reference[1])];
  const [, ...names] = reference[2].split(".");
  return names.reduce((found, name) => found[name], returned ?? raised);
}

async function run({ call, of, arguments: values = [], options }, results) {
  const target = of === "client" ? client : user;
  const resolved = values.map((value) => resolve(value, results));
  if (options) {
    resolved.push(options);
  }
  const result = await target[call](...resolved);
  if (!result?.[Symbol.asyncIterator]) {
    return result ?? null;
  }
  const rows = [];
  for await (const row of result) {
    rows.push(row);
  }
  return rows;
}

const input = JSON.parse(process.argv[2]);
const user = new client.User(...input.user);
const results = [];
for (const step of input.steps) {
  try {
    results.push({ returned: await run(step, results) });
  } catch (error) {
    const { name: type, message, profile } = error;
    const shown = inspect(error, { showHidden: true });
    results.push({ raised: { type, message, profile, shown, ...error } });
  }
}
console.log(JSON.stringify(results));
