/* What client_cases.json leaves out of docs/client.mjs, with the service behind
a proxy that spoils some responses. test_client_node.py runs it. */

import assert from "node:assert/strict";
import { createServer, request as open } from "node:http";
import { beforeEach, test } from "node:test";
import { inspect } from "node:util";
import * as client from "../docs/client.mjs";

const { Service, ServiceError, SignedOut, User, signUp } = client;
const { SERVICE, PROFILES_TOKEN } = process.env;

let faults = []; // the next one responds to a request instead of the service
let sent = []; // the last part of each path
let requestIds = [];

const proxy = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) {
    chunks.push(chunk);
  }
  sent.push(request.url.replace(/\?.*/, "").replace(/.*\//, ""));
  requestIds.push(request.headers["x-request-id"]);
  const respond = faults.shift() ?? passOn;
  respond(request, Buffer.concat(chunks), response);
});

/** Let the server listen at a port; return its address. */
async function listen(server, port = 0) {
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
}

const ORIGIN = await listen(proxy);

/** Send the request to the service, which knows nothing of the prefix. */
function sendOn({ method, headers, url }, body, callback) {
  const target = SERVICE + url.replace("/prefix", "");
  open(target, { method, headers }, callback).end(body);
}

function passOn(request, body, response) {
  sendOn(request, body, (reply) => {
    response.writeHead(reply.statusCode, reply.headers);
    reply.pipe(response);
  });
}

/** The service does what is asked, and its response is lost. */
function lose(request, body, response) {
  sendOn(request, body, (reply) => {
    reply.resume().on("end", () => response.destroy());
  });
}

/** A page of the proxy itself. */
function page(status, headers) {
  return (request, body, response) => {
    response.writeHead(status, headers).end("<p>");
  };
}

/** A response that starts and never ends. */
function trickle(request, body, response) {
  const timer = setInterval(() => response.write(" "), 50);
  response.on("close", () => clearInterval(timer));
}

function neverRespond() {}

beforeEach(() => {
  delete process.env.PROFILES_TIMEOUT;
  process.env.PROFILES_URL = `${ORIGIN}/prefix/`;
  process.env.PROFILES_TOKEN = PROFILES_TOKEN;
  faults = [];
});

let count = 0;

/** Return a user whom no other test has. */
async function newUser() {
  count += 1;
  const eve = await signUp(`Eve ${count}`);
  sent = [];
  return eve;
}

function named(name) {
  return { "full-name": name, "contact-email": `${name}@example.com` };
}

async function readAll(rows) {
  const list = [];
  for await (const row of rows) {
    list.push(row);
  }
  return list;
}

/** Return the error with which the promise is rejected. */
async function rejection(promise, type = ServiceError) {
  try {
    await promise;
  } catch (error) {
    assert.equal(error.constructor, type, inspect(error));
    const shown = inspect(error, { showHidden: true });
    assert.doesNotMatch(shown, /secret|[0-9a-f]{64}/);
    return error;
  }
  return assert.fail("nothing was thrown");
}

test("signing up again gives the same account", async () => {
  const eve = await signUp("Eve", 7);
  const again = await signUp("Eve");
  const later = await new User("Eve", "", "", 8).signIn();
  const kept = new User("Eve", eve.token, eve.sessionid);
  assert.deepEqual(await kept.account(), await again.account());
  const durations = [];
  for await (const session of kept.sessions(1)) {
    durations.push(session.duration);
  }
  assert.deepEqual(durations, [8, 2_592_000, 7]);
  assert.notEqual(later.token, eve.token);
});

test("a User without a session", async () => {
  sent = [];
  for (const values of [["x"], ["x", ""], ["", "x"], [null, "x"]]) {
    assert.throws(() => new User("Eve", ...values), {
      name: "TypeError",
      message: "the token and its sessionid belong together",
    });
  }
  for (const values of [[], [undefined, undefined], [null, null]]) {
    const user = new User("Eve", ...values);
    const { message } = await rejection(user.account(), SignedOut);
    assert.equal(message, "sign-in-required, the User has no token");
  }
  assert.deepEqual(sent, []);
});

test("an undefined parameter or key is refused", async () => {
  const eve = await newUser();
  const error = await rejection(eve.endSession(), TypeError);
  assert.equal(error.message, "sessionid has no value");
  const { message } = await rejection(eve.createProfile({}), TypeError);
  assert.equal(message, "key has no value");
  const key = undefined;
  const account = client.administrate("POST", "create-account", { key });
  assert.equal((await rejection(account)).detail, "malformed Idempotency-Key");
  assert.deepEqual(sent, []);
});

test("no framework keeps a response", async () => {
  const eve = await newUser();
  const cacheControls = [];
  faults = [
    (request, ...rest) => {
      cacheControls.push(request.headers["cache-control"]);
      passOn(request, ...rest);
    },
  ];
  await eve.account();
  assert.deepEqual(cacheControls, ["no-cache"]); // fetch adds it to no-store
});

test("an error of a framework is not changed", async (context) => {
  const eve = await newUser();
  const own = new Error("no-store fetch");
  context.mock.method(globalThis, "fetch", async () => {
    throw own;
  });
  assert.equal(await rejection(eve.account(), Error), own);
});

test("an undefined field isn't sent, so it keeps its value", async () => {
  const eve = await newUser();
  await eve.saveProfile({ ...named("a"), phone: "1" });
  const fields = { ...named("b"), phone: undefined, "x-vat-id": undefined };
  assert.equal((await eve.saveProfile(fields)).phone, "1");
});

test("first saves at once store one profile", async () => {
  const eve = await newUser();
  const names = ["a", "b", "c", "d"];
  await Promise.all(names.map((name) => eve.saveProfile(named(name))));
  const { profile } = await eve.account();
  assert.deepEqual(await readAll(eve.profiles()), [profile]);
});

test("the devices of a user", async () => {
  const eve = await newUser();
  const phone = await new User(`Eve ${count}`).signIn();
  const tablet = await new User(`Eve ${count}`).signIn();
  faults = [lose];
  await phone.endSession(eve.sessionid);
  assert.equal((await rejection(eve.account(), SignedOut)).reason, "ended");
  await tablet.signOut();
  const [session, ...others] = await readAll(phone.sessions());
  assert.equal(session.sessionid, phone.sessionid);
  assert.deepEqual(others, []);
});

test("a lost or refused response is tried again", async () => {
  const eve = await newUser();
  const refused = page(503, { "Retry-After": "1" });
  faults = [passOn, lose, refused];
  const start = performance.now();
  const saved = await eve.saveProfile(named("a"));
  assert.ok(performance.now() - start >= 990);
  assert.deepEqual(await readAll(eve.profiles()), [saved]);
  faults = [refused, page(502), page(504)];
  await eve.account();
  assert.deepEqual(faults, []);
});

test("a response that is lost each time is an error", async () => {
  const eve = await newUser();
  process.env.PROFILES_TIMEOUT = "2";
  requestIds = [];
  faults = [lose, lose, lose];
  const error = await rejection(eve.account());
  const { requestId } = error;
  const message = `no-answer, ${ORIGIN}, UND_ERR_SOCKET, request ${requestId}`;
  assert.equal(error.message, message);
  assert.equal(sent.length, 3);
  assert.deepEqual(requestIds, [requestId, requestId, requestId]);
});

test("a service that starts within two seconds", async () => {
  const eve = await newUser();
  const later = createServer((request, response) => response.end('{"a":1}'));
  process.env.PROFILES_URL = await listen(later);
  const { port } = later.address();
  await new Promise((resolve) => later.close(resolve));
  setTimeout(listen, 500, later, port);
  assert.deepEqual(await eve.account(), { a: 1 });
});

test("kept connections that were forgotten", async () => {
  const used = new Set();
  const reset = createServer(({ socket }, response) => {
    if (used.has(socket)) {
      socket.resetAndDestroy();
    } else {
      used.add(socket);
      setTimeout(() => response.end("{}"), 200);
    }
  });
  const service = new Service({ url: await listen(reset), token: "x" });
  const send = () => service.administrate("GET", "accounts");
  await Promise.all(Array.from({ length: 30 }, send));
  assert.equal(used.size, 30);
  for (const count of [31, 32, 33, 34, 35]) {
    await send();
    assert.equal(used.size, count);
  }
});

test("an outage that lasts is an error", async () => {
  const eve = await newUser();
  process.env.PROFILES_TIMEOUT = "20";
  faults = Array(9).fill(page(503, { "Retry-After": "0" }));
  const error = await rejection(eve.account());
  const message = `unexpected-answer, status 503, request ${error.requestId}`;
  assert.equal(error.message, message);
  assert.equal(sent.length, 5);
});

test("a wait that ends after the time limit is an error at once", async () => {
  const eve = await newUser();
  const refused = page(503, { "Retry-After": "9" });
  faults = [refused];
  assert.equal((await rejection(eve.account())).retryAfter, "9");
  const start = performance.now();
  faults = [page(503, { "Retry-After": "14" }), refused];
  process.env.PROFILES_TIMEOUT = "1";
  await rejection(eve.signOut());
  assert.ok(performance.now() - start < 1_000);
});

for (const fault of [trickle, neverRespond]) {
  test(`the time limit includes the response: ${fault.name}`, async () => {
    const eve = await newUser();
    process.env.PROFILES_TIMEOUT = "0.4";
    faults = [fault, fault];
    const start = performance.now();
    const error = await rejection(eve.account());
    assert.ok(error.message.startsWith(`no-answer, ${ORIGIN}, TimeoutError,`));
    assert.ok(performance.now() - start < 1_500);
    assert.equal(faults.length, 1);
  });
}

test("a walk, some of whose requests fail", async () => {
  const eve = await newUser();
  for (const name of ["a", "b", "c", "d", "e"]) {
    await eve.createProfile(named(name), name);
  }
  const { accountid } = eve;
  const badGateway = page(502, { "Retry-After": "soon" });
  faults = [page(504), passOn, lose, passOn, badGateway];
  const rows = await readAll(client.profiles({ accountid, limit: 2 }));
  const names = rows.map((row) => row.fullName);
  assert.deepEqual(names, ["e", "d", "c", "b", "a"]);
  assert.deepEqual(faults, []);
  const query = { email: "B@example.com", accountid };
  assert.deepEqual(await readAll(client.profiles(query)), [rows[3]]);
  const accounts = await readAll(client.accounts({ accountid }));
  assert.deepEqual(accounts, [await eve.account()]);
});

test("a row that is deleted during a walk", async () => {
  const eve = await newUser();
  await eve.createProfile(named("a"), "a");
  const { profileid } = await eve.createProfile(named("b"), "b");
  const query = { accountid: eve.accountid, limit: 1 };
  const rows = client.walk(eve.send, "profiles", query);
  await rows.next();
  await eve.deleteProfile(profileid);
  const [{ fullName }] = await readAll(rows);
  assert.equal(fullName, "a");
});

test("nothing listens at the address", async () => {
  process.env.PROFILES_URL = "http://127.0.0.1:3/secret";
  process.env.PROFILES_TIMEOUT = "0.5";
  const { message } = await rejection(new User("Eve").signIn());
  const start = "no-answer, http://127.0.0.1:3, ECONNREFUSED, request ";
  assert.ok(message.startsWith(start));
});

test("a port to which fetch() sends nothing", async () => {
  process.env.PROFILES_URL = "http://127.0.0.1:1/secret";
  const { message } = await rejection(new User("Eve").signIn());
  assert.equal(
    message,
    "not-sent, PROFILES_URL has a port that fetch() refuses",
  );
});

test("an error has its name, also if a bundler has renamed its class", () => {
  for (const name of ["ServiceError", "AdministratorTokenError", "SignedOut"]) {
    assert.equal(new client[name]("x").name, name);
  }
});

test("a service that is configured by values", async () => {
  const url = process.env.PROFILES_URL;
  delete process.env.PROFILES_URL;
  const service = new Service({ url, token: PROFILES_TOKEN, timeout: 20 });
  const eve = await service.signUp("Eve by values", 60);
  const { token, sessionid } = eve;
  const kept = service.user("Eve by values", { token, sessionid });
  const saved = await kept.saveProfile(named("a"));
  const { accountid } = kept;
  assert.equal(accountid, service.computeAccountid("Eve by values"));
  assert.deepEqual(await readAll(service.profiles({ accountid })), [saved]);
  const [account] = await readAll(service.accounts({ accountid }));
  assert.deepEqual(account.profile, saved);
  const query = { accountid, limit: 1 };
  const page = await client.readPage(service.administrate, "sessions", query);
  assert.equal(page.rows[0].duration, 60);
  assert.doesNotMatch(inspect([service, eve]), RegExp(PROFILES_TOKEN));
  await kept.delete();
  const { detail } = await rejection(signUp("Eve by values"));
  assert.equal(detail, "PROFILES_URL is not set");
});

test("a service whose appid is another one", async () => {
  const settings = { url: process.env.PROFILES_URL, token: PROFILES_TOKEN };
  const shop = new Service({ ...settings, appid: "shop" });
  assert.equal(shop.user("Eve").accountid, "acct_fe37c8dc5d3bd61a");
  await rejection(shop.signUp("Eve"), client.AdministratorTokenError);
});

for (const [settings, detail] of [
  [{ url: "localhost" }, "malformed url"],
  [{ url: undefined }, "url is not set"],
  [{ token: "secret\n" }, "malformed token"],
  [{ token: "" }, "token is not set"],
  [{ appid: "secret\nx" }, "malformed appid"],
  [{ timeout: -1 }, "malformed timeout"],
]) {
  test(`a service with a wrong setting: ${detail}`, async () => {
    const right = { url: process.env.PROFILES_URL, token: PROFILES_TOKEN };
    const service = new Service({ ...right, ...settings });
    const error = await rejection(service.signUp("Eve"));
    assert.equal(error.message, `not-sent, ${detail}`);
  });
}

test("the message about a wrong id begins with userId", async () => {
  for (const id of [5, 5n, undefined, "x "]) {
    assert.throws(() => new User(id), { message: /^userId must be / });
    const { message } = await rejection(signUp(id), TypeError);
    assert.match(message, /^userId must be /);
  }
});

for (const [link, next] of [
  ["</api?after=1>; rel=next", { after: "1" }],
  ['</api?after=1&a=b>; title="x"; rel="next"; type=x', { after: "1", a: "b" }],
  ["</api?after=1>; rel=prev, </api?after=2>;rel=next", { after: "2" }],
  ["</api?after=1>; rel=next, </api?after=2>; rel=prev", { after: "1" }],
  ["</api?after=1>; rel=nextish", null],
  ["</api?after=1>; rel=prev", null],
]) {
  test(`the header Link: ${link}`, async () => {
    const headers = new Headers({ Link: link });
    const send = async () => ({ headers, content: null });
    const page = await client.readPage(send, "accounts");
    assert.deepEqual(page, { rows: [], nextQuery: next });
  });
}
