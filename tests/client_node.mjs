// docs/client.mjs, with the service behind a proxy that spoils some responses. test_client_node.py runs it.
import assert from "node:assert/strict";
import { createServer, request as open } from "node:http";
import { beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import * as client from "../docs/client.mjs";

const { SERVICE = "", PROFILES_TOKEN: TOKEN = "" } = process.env;
const { AdministratorTokenError, ServiceError, SignedOut, User, administrate, signUp } = client;

/** @typedef {import("node:http").IncomingMessage} Request */
/** @typedef {import("node:http").ServerResponse} Response */
/** @typedef {(request: Request, body: Buffer, response: Response) => void} Fault */
/** @type {Fault[]} the next of them responds to a request instead of the service */
let faults = [];
/** @type {string[]} the last part of each path */
let sent = [];

const proxy = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  sent.push(String(request.url?.replace(/\?.*/, "").replace(/.*\//, "")));
  const respond = faults.shift() ?? passOn;
  respond(request, Buffer.concat(chunks), response);
});
await new Promise((resolve) => proxy.listen(0, "127.0.0.1", () => resolve(undefined)));
proxy.unref();
const { port } = /** @type {import("node:net").AddressInfo} */ (proxy.address());

/** @type {Fault} The service knows nothing of the prefix. */
function passOn({ method, headers, url = "" }, body, response) {
  const onward = open(SERVICE + url.replace("/prefix", ""), { method, headers }, (reply) => {
    response.writeHead(reply.statusCode ?? 0, reply.headers);
    reply.pipe(response);
  });
  onward.end(body);
}

/** @type {Fault} The service does what is asked, and its response is lost. */
function lose({ method, headers, url = "" }, body, response) {
  const onward = open(SERVICE + url.replace("/prefix", ""), { method, headers }, (reply) => {
    reply.resume().on("end", () => response.destroy());
  });
  onward.end(body);
}

/** A response of the proxy itself.
 * @param {number} status @param {unknown} content @param {Record<string, string>} headers @returns {Fault} */
const page = (status, content = "<p>", headers = {}) => (request, body, response) => {
  response.writeHead(status, headers).end(typeof content === "string" ? content : JSON.stringify(content));
};

/** @type {Fault} A response that starts and never ends. */
function trickle(request, body, response) {
  const timer = setInterval(() => response.write(" "), 50);
  response.on("close", () => clearInterval(timer));
}

const ORIGIN = `http://127.0.0.1:${port}`;
const ADDRESS = `http://ada:secret@127.0.0.1:${port}/prefix/?secret`;
const SETTINGS = { PROFILES_URL: ADDRESS, PROFILES_TOKEN: TOKEN };
let count = 0;
beforeEach(() => {
  delete process.env.PROFILES_APPID;
  delete process.env.PROFILES_TIMEOUT;
  Object.assign(process.env, SETTINGS);
  faults = [];
});

/** A user whom no other test has. */
async function newUser(duration = 60) {
  const name = `Eve ${++count}`;
  const eve = await signUp(name, duration);
  sent = [];
  return { eve, name, keep: () => new User(name, eve.token, eve.sessionid, 60) };
}

/** @param {string} name */
const named = (name) => ({ "full-name": name, "contact-email": `${name}@example.com` });

/** @param {AsyncIterable<client.Row>} rows */
async function all(rows) {
  const list = [];
  for await (const row of rows) list.push(row);
  return list;
}

/** The error that the call throws. @param {unknown} call @param {Function} type @returns {Promise<any>} */
async function thrown(call, type = ServiceError) {
  const error = await Promise.resolve(call).then(() => assert.fail("nothing was thrown"), (error) => error);
  assert.equal(error.constructor, type, inspect(error));
  assert.doesNotMatch(inspect(error, { showHidden: true }), /secret|[0-9a-f]{64}|\n.*\n.*\?/i);
  return error;
}

test("signing up again gives the same account", async () => {
  const { eve, name } = await newUser();
  const again = await signUp(name);
  assert.equal(again.accountid, eve.accountid);
  assert.equal(client.computeAccountid(name), eve.accountid);
  assert.deepEqual(await again.account(), await eve.account());
  assert.deepEqual((await all(eve.sessions())).map((session) => session.duration), [28_800, 60]);
  assert.notEqual((await new User(name).signIn()).token, eve.token);
});

test("the default profile is saved, and no other one", async () => {
  const { eve } = await newUser();
  const other = await eve.createProfile(named("Lea"), "other");
  const first = await eve.saveProfile(named("a"));
  assert.deepEqual((await eve.account()).profile, first);
  const second = await eve.saveProfile(named("b"));
  assert.deepEqual([second.profileid, second.fullName], [first.profileid, "b"]);
  await eve.deleteProfile(first.profileid);
  await eve.deleteProfile(first.profileid);
  const third = await eve.saveProfile(named("c"));
  assert.deepEqual((await eve.account()).profile, third);
  assert.deepEqual(await eve.profile(other.profileid), other);
  await eve.setDefaultProfile(other.profileid);
  const named4 = await eve.saveProfile(named("d"), { profileid: third.profileid });
  assert.deepEqual(await all(eve.profiles(1)), [named4, other]);
});

test("first saves at once store one profile, which is the default", async () => {
  const { eve } = await newUser();
  const saves = ["a", "b", "c", "d"].map((name) => eve.saveProfile(named(name)));
  const ids = new Set((await Promise.all(saves)).map((profile) => profile.profileid));
  assert.deepEqual(await all(eve.profiles()), [(await eve.account()).profile]);
  assert.equal(ids.size, 1);
});

test("a first profile that exists is saved and becomes the default", async () => {
  const { eve } = await newUser();
  const first = await eve.createProfile(named("a"), "first");
  const saved = await eve.saveProfile(named("b"));
  assert.deepEqual([saved.profileid, saved.fullName], [first.profileid, "b"]);
  assert.deepEqual((await eve.account()).profile, saved);
});

test("an edit of a profile that was changed or deleted", async () => {
  const { eve } = await newUser();
  const { profileid, updatedAt: ifMatch } = await eve.saveProfile(named("a"));
  faults = [passOn, lose];
  const saved = await eve.saveProfile(named("b"), { ifMatch });
  for (const options of [{ ifMatch }, { profileid, ifMatch }]) {
    const error = await thrown(eve.saveProfile(named("c"), options));
    assert.equal(error.message, `profile-changed, status 412, request ${error.requestId}`);
  }
  assert.deepEqual(await all(eve.profiles()), [saved]);
  await eve.deleteProfile(profileid);
  assert.equal((await thrown(eve.saveProfile(named("d"), { ifMatch }))).status, 412);
  assert.deepEqual(await all(eve.profiles()), []);
});

test("a session that has expired is renewed", async () => {
  const { eve, keep } = await newUser(1);
  const kept = keep();
  await sleep(1_100);
  assert.equal((await kept.account()).accountid, eve.accountid);
  assert.deepEqual(sent, ["account", "create-session", "account"]);
  assert.deepEqual((await all(kept.sessions())).map((row) => row.sessionid), [kept.sessionid]);
  assert.notEqual(kept.token, eve.token);
});

test("the devices of a user", async () => {
  const { eve, name } = await newUser();
  const [phone, tablet] = [await new User(name).signIn(), await new User(name).signIn()];
  faults = [lose];
  await phone.endSession(eve.sessionid ?? "");
  await phone.endSession("sess_0123456789abcdef");
  assert.equal((await thrown(eve.account(), SignedOut)).reason, "ended");
  await tablet.signOut();
  await tablet.signOut();
  assert.deepEqual((await all(phone.sessions())).map((row) => row.sessionid), [phone.sessionid]);
  await phone.signOutEverywhere();
  assert.equal((await thrown(phone.account(), SignedOut)).code, "sign-in-required");
});

test("an account that was deleted", async () => {
  const { eve, name, keep } = await newUser();
  await eve.delete();
  await eve.delete();
  const error = await thrown(keep().saveProfile(named("a")), SignedOut);
  assert.equal(error.message, "invalid-accountid, status 404");
  assert.equal((await thrown(new User(name).signIn())).code, "invalid-accountid");
});

test("responses that are lost or refused are tried again with the same key", async () => {
  const { eve } = await newUser();
  const refused = page(503, "<p>", { "Retry-After": "1" });
  faults = [passOn, lose, refused];
  const start = performance.now();
  const saved = await eve.saveProfile(named("a"));
  assert.ok(performance.now() - start >= 990);
  assert.deepEqual(await all(eve.profiles()), [saved]);
  faults = [refused, page(502), page(504)];
  await eve.account();
  faults = [lose, lose];
  const error = await thrown(eve.account());
  assert.equal(error.message, `no-answer, ${ORIGIN}, other side closed`);
  faults = [page(503, "<p>", { "Retry-After": "9" })];
  assert.equal((await thrown(eve.account())).message, "unexpected-answer, status 503");
  assert.deepEqual(faults, []);
});

test("the time limit includes the response and all tries", async () => {
  const { eve } = await newUser();
  process.env.PROFILES_TIMEOUT = "0.4";
  for (const fault of [trickle, () => {}]) {
    const start = performance.now();
    faults = [fault, fault];
    const error = await thrown(eve.account());
    assert.equal(error.code, "no-answer");
    assert.match(error.message, /timeout/);
    assert.ok(performance.now() - start < 1_500);
    assert.equal(faults.length, 1);
  }
});

test("a walk, some of whose requests fail", async () => {
  const { eve } = await newUser();
  for (const key of ["a", "b", "c", "d", "e"]) await eve.createProfile(named(key), key);
  faults = [page(504), passOn, lose, passOn, page(502, "<p>", { "Retry-After": "soon" })];
  const { accountid } = eve;
  const found = await all(client.profiles({ accountid, limit: 2 }));
  assert.deepEqual(found.map((row) => row.fullName), ["e", "d", "c", "b", "a"]);
  assert.deepEqual(await all(client.profiles({ email: "B@example.com", accountid })), [found[3]]);
  const [account, ...others] = await all(client.accounts({ accountid }));
  assert.deepEqual([account, others], [await eve.account(), []]);
  const rows = client.walk(eve.send, "profiles", { accountid, limit: 1 });
  await eve.deleteProfile((await rows.next()).value?.profileid);
  assert.equal((await thrown(rows.next())).code, "invalid-after");
});

/** @type {Record<string, (eve: client.User) => unknown>} */
const REFUSED = {
  "unknown parameter: emali": () => client.profiles(/** @type {any} */ ({ emali: "x" })).next(),
  "unknown parameter: appid": () => administrate("GET", "accounts", { appid: "x" }),
  "email has no value": () => client.profiles({ email: "" }).next(),
  "accountid has no value": () => client.accounts(/** @type {any} */ ({ accountid: undefined })).next(),
  "sessionid has no value": (eve) => eve.endSession(/** @type {any} */ (undefined)),
  "profileid has no value": (eve) => eve.saveProfile({}, /** @type {any} */ ({ profileid: undefined })),
  "ifMatch has no value": (eve) => eve.saveProfile({}, { profileid: "x", ifMatch: "" }),
  "key has no value": (eve) => eve.createProfile({}, /** @type {any} */ (undefined)),
  "unknown field: websiet": (eve) => eve.createProfile({ websiet: "x" }, "x"),
  "unknown field: fullName": (eve) => eve.saveProfile({ fullName: "x" }, { profileid: "x" }),
  "token has no value": () => new User("Eve").account(),
  "the token and its sessionid belong together": async () => new User("Eve", "x"),
  'not 1 to 255 ASCII characters, stripped: "x "': () => signUp("x "),
  "not 1 to 255 ASCII characters, stripped: 7": () => signUp(/** @type {any} */ (7)),
};
test("options of a save that are unknown or empty store nothing", async () => {
  const { eve } = await newUser();
  for (const options of [{ profileId: "x" }, { ifMatch: undefined }]) {
    await thrown(eve.saveProfile(named("a"), /** @type {any} */ (options)), TypeError);
  }
  await eve.saveProfile(named("a"));
  assert.deepEqual(sent, ["account", "account", "account", "create-profile"]);
});

for (const [message, call] of Object.entries(REFUSED)) {
  test(`refused before it is sent: ${message}`, async () => {
    const { eve } = await newUser();
    assert.equal((await thrown(call(eve), TypeError)).message, message);
    assert.deepEqual(sent, []);
  });
}

test("each wrong field has its code", async () => {
  const { eve } = await newUser();
  const error = await thrown(eve.createProfile({ phone: "7" }, "x"));
  const errors = { "contact-email": "invalid-contact-email", "full-name": "invalid-full-name" };
  assert.deepEqual([error.name, error.code, error.status], ["ServiceError", "invalid-contact-email", 400]);
  assert.deepEqual(error.errors, errors);
  assert.match(error.requestId, /^[0-9a-f-]{16,}$/);
  const fields = "contact-email: invalid-contact-email, full-name: invalid-full-name";
  assert.equal(error.message, `invalid-contact-email, status 400, ${fields}, request ${error.requestId}`);
});

test("the administrator's token is wrong", async () => {
  const { eve, name } = await newUser();
  for (const token of ["0".repeat(64), eve.token]) {
    process.env.PROFILES_TOKEN = token;
    await thrown(new User(name).signIn(), AdministratorTokenError);
  }
  Object.assign(process.env, SETTINGS, { PROFILES_APPID: "other" });
  await thrown(eve.account(), AdministratorTokenError);
});

const ANOTHER = [
  [200, "<p>"],
  [302, "<p>"],
  [404, "[]"],
  [404, { message: "no\nroute" }],
  [404, { object: "x", message: "no\nroute", errors: null }],
];
for (const [status, content] of ANOTHER) {
  test(`another page is an error at once: ${status} ${inspect(content)}`, async () => {
    const { eve } = await newUser();
    faults = [page(Number(status), content, { Location: "/health", "X-Request-Id": "r7" })];
    const error = await thrown(eve.account());
    assert.equal(error.message, `unexpected-answer, status ${status}, request r7`);
    assert.deepEqual(sent, ["account"]);
  });
}

const NOT_SENT = {
  "token with a line break": [{ PROFILES_TOKEN: "secret\n" }, `${ORIGIN}, malformed Authorization`],
  "appid with a line break": [{ PROFILES_APPID: "secret\nx" }, `${ORIGIN}, malformed X-Appid`],
  "address without a scheme": [{ PROFILES_URL: "localhost:8000/secret" }, "malformed PROFILES_URL"],
  "address without a host": [{ PROFILES_URL: "http://:secret@" }, "malformed PROFILES_URL"],
  "no address": [{ PROFILES_URL: "" }, "malformed PROFILES_URL"],
};
for (const [name, [settings, detail]] of Object.entries(NOT_SENT)) {
  test(`not sent: ${name}`, async () => {
    sent = [];
    Object.assign(process.env, settings);
    assert.equal((await thrown(new User("Eve").signIn())).message, `not-sent, ${detail}`);
    assert.deepEqual(sent, []);
  });
}

test("no service listens", async () => {
  process.env.PROFILES_URL = "http://ada:secret@127.0.0.1:3/?secret";
  const error = await thrown(new User("Eve").signIn());
  assert.equal(error.message, "no-answer, http://127.0.0.1:3, connect ECONNREFUSED 127.0.0.1:3");
});
