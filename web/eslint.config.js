import js from "@eslint/js";
import ts from "typescript-eslint";

// Text of a trace is shown as text: nothing parses it as markup.
const markup = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc"];
const network = ["fetch", "XMLHttpRequest", "WebSocket", "EventSource", "importScripts"];

export default ts.config(
  { ignores: ["dist", "node_modules", "src/data/generated"] },
  js.configs.recommended,
  ...ts.configs.recommended,
  {
    rules: {
      "no-restricted-properties": ["error", ...markup.map((property) => ({ property }))],
      "no-restricted-globals": ["error", ...network],
      "no-eval": "error",
      "no-implied-eval": "error",
    },
  },
  {
    files: ["tests/**", "*.ts", "types.mjs"],
    // They run in Node.js and in the page.
    rules: { "no-restricted-properties": "off", "no-restricted-globals": "off", "no-undef": "off" },
  },
);
