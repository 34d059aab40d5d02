// A client made by openapi-typescript and openapi-fetch: test_clients.py compiles and runs it.
import createClient from "openapi-fetch";
import type { components, paths } from "./profiles.js";

declare const process: { argv: string[] };
const [, , baseUrl, token] = process.argv;

function makeClient(token?: string) {
  return createClient<paths>({ baseUrl: baseUrl!, headers: { Authorization: `Bearer ${token}` } });
}

function nameOf(profile: components["schemas"]["Profile"]): string {
  return profile.fullName ?? profile.profileid;
}

const administrator = makeClient(token);
const { data: account } = await administrator.POST("/api/administrator/create-account", {
  params: { header: { "Idempotency-Key": "ada" } },
});
const { data: session, error } = await administrator.POST("/api/administrator/create-session", {
  params: { query: { accountid: account!.accountid } },
  body: {}, // without a duration
});
if (error) throw new Error(error.message);

const user = makeClient(session.token);
const query = { accountid: account!.accountid };
const { error: refused } = await user.POST("/api/user/create-profile", {
  params: { query },
  body: { "contact-email": "@", "full-name": "Ada King" },
});
const reason: string | undefined = refused?.errors?.["contact-email"];
const { data: profile } = await user.POST("/api/user/create-profile", {
  params: { query, header: { "Idempotency-Key": "first" } },
  body: { "contact-email": "ada@example.com", "full-name": "Ada King", default: true },
});
const { data: accounts, response } = await administrator.GET("/api/administrator/accounts", {
  params: { query: { ...query, limit: 1 } },
});
const names = accounts?.map(({ profile }) => profile && nameOf(profile));
console.log(JSON.stringify([reason, nameOf(profile!), names, response.headers.get("Link")]));
