// Builds the page as one file: script and style stand in it, and the policy names their hashes.
import { createHash } from "node:crypto";
import { defineConfig, type Plugin } from "vite";

const PLACE = "<!--data-->";

function hash(text: string): string {
  return `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;
}

function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_options, bundle) {
      let script = "";
      let style = "";
      for (const [name, item] of Object.entries(bundle)) {
        if (item.type === "chunk") script += item.code;
        else if (name.endsWith(".css")) style += String(item.source);
        else continue;
        delete bundle[name];
      }
      const page = bundle["index.html"];
      if (page?.type !== "asset") this.error("there is no index.html");
      script = script.replaceAll("</script", "<\\/script").trim();
      style = style.trim();
      if (style.includes("</style")) this.error("the style ends itself");
      const policy = [
        "default-src 'none'",
        `script-src ${hash(script)}`,
        `style-src ${hash(style)}`,
        "base-uri 'none'",
        "form-action 'none'",
      ].join("; ");
      const html = String(page.source)
        .replace(/<script[^>]*type="module"[^>]*><\/script>\s*/g, "")
        .replace(/<link[^>]*rel="stylesheet"[^>]*>\s*/g, "")
        .replace("<!--policy-->", () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
        .replace("<!--style-->", () => `<style>${style}</style>`)
        .replace("<!--script-->", () => `<script>${script}</script>`);
      for (const place of [PLACE, "<style>", "Content-Security-Policy"]) {
        if (html.split(place).length !== 2) this.error(`the page does not have one ${place}`);
      }
      page.source = html;
    },
  };
}

export default defineConfig({
  base: "./",
  build: {
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: { output: { format: "iife" } },
  },
  plugins: [oneFile()],
  test: { include: ["src/**/*.test.ts"] },
} as Parameters<typeof defineConfig>[0]);
