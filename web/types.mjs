// The types of the documents that are parts of the page, from their schemas in docs/schemas: src/data/generated/*.ts.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

const DOCUMENTS = { report: 3, frag: 2, leaks: 2, fits: 2 };
const SIMPLE = { string: "string", integer: "number", number: "number", boolean: "boolean", null: "null" };

function object({ properties = {}, required = [], additionalProperties }) {
  if (typeof additionalProperties === "object") return `Record<string, ${type(additionalProperties)}>`;
  const field = ([name, of]) => `${name}${required.includes(name) ? "" : "?"}: ${type(of)};`;
  return `{ ${Object.entries(properties).map(field).join(" ")} }`;
}

function type(of) {
  if (of.$ref) return of.$ref.split("/").pop();
  if (of.const !== undefined) return JSON.stringify(of.const);
  if (of.enum) return of.enum.map((value) => JSON.stringify(value)).join(" | ");
  const several = of.anyOf ?? of.oneOf ?? (Array.isArray(of.type) ? of.type.map((one) => ({ ...of, type: one })) : null);
  if (several) return several.map((one) => type(one)).join(" | ");
  if (of.type === "array") return of.prefixItems ? `[${of.prefixItems.map(type).join(", ")}]` : `(${type(of.items ?? {})})[]`;
  return of.type === "object" ? object(of) : (SIMPLE[of.type] ?? "unknown");
}

const into = new URL("src/data/generated/", import.meta.url);
mkdirSync(into, { recursive: true });
for (const [name, major] of Object.entries(DOCUMENTS)) {
  const schema = JSON.parse(readFileSync(new URL(`../docs/schemas/vramtrace.${name}-${major}.json`, import.meta.url), "utf8"));
  const all = Object.entries({ ...schema.$defs, Document: schema });
  writeFileSync(new URL(`${name}.ts`, into), all.map(([of, is]) => `export type ${of} = ${type(is)};\n`).join(""));
}
