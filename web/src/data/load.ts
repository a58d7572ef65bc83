// Takes the data out of the page.

import type { Facts } from "./facts.ts";
import { decode, type Stream } from "./stream.ts";

type FromBase64 = { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };

function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const native = (Uint8Array as unknown as FromBase64).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

async function inflated(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function section(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no data: ${id} is missing`);
  const bytes = bytesOf((node.textContent ?? "").trim());
  node.remove();
  return inflated(bytes);
}

export async function loadFacts(): Promise<Facts> {
  const text = new TextDecoder().decode(await section("facts"));
  const facts = JSON.parse(text) as Facts;
  if (facts.schema !== "vramtrace.page/4") throw new Error(`unknown data: ${facts.schema}`);
  return facts;
}

/** Of the process with this number, over all runs. */
export async function loadStream(index: number): Promise<Stream> {
  return decode(await section(`stream-${index}`));
}
