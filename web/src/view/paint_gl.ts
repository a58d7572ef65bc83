// Rectangles by WebGL2: one instance each, in order of their beginning.

import type { Painter, Rectangles, Window2 } from "./blocks.ts";
import { after } from "../model/model.ts";

const VERTEX = `#version 300 es
precision highp float;
// Times as two numbers: one alone is too coarse for a run of hours.
layout(location = 0) in vec2 from;
layout(location = 1) in vec2 to;
layout(location = 2) in vec2 bytes;
layout(location = 3) in vec4 colour;
uniform vec4 start;
uniform vec2 scale;
uniform vec2 pixel;
out vec4 ink;
void main() {
  float left = ((from.x - start.x) + (from.y - start.y)) * scale.x;
  float right = ((to.x - start.x) + (to.y - start.y)) * scale.x;
  float low = (bytes.x - start.z) * scale.y;
  float high = low + bytes.y * scale.y;
  // Nothing is so small that it is not drawn.
  right = max(right, left + pixel.x);
  high = max(high, low + pixel.y);
  // A line between neighbours where there is room for it.
  float gap = right - left > 4.0 * pixel.x ? pixel.x * 0.6 : 0.0;
  float slit = high - low > 4.0 * pixel.y ? pixel.y * 0.6 : 0.0;
  float x = (gl_VertexID & 1) == 0 ? left : right - gap;
  float y = (gl_VertexID & 2) == 0 ? low : high - slit;
  ink = colour;
  gl_Position = vec4(clamp(x, -0.5, 1.5) * 2.0 - 1.0, clamp(y, -0.5, 1.5) * 2.0 - 1.0, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 ink;
out vec4 shown;
void main() { shown = vec4(ink.rgb * ink.a, ink.a); }`;

export class GlPainter implements Painter {
  private loaded: Rectangles | null = null;
  /** Of the first n, the latest end: what begins earlier and is over needs no drawing. */
  private latest = new Float64Array(0);
  private readonly pixel = new Uint8Array(4);

  private constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly gl: WebGL2RenderingContext,
    private readonly program: WebGLProgram,
    private readonly buffers: WebGLBuffer[],
    readonly software: boolean,
  ) {}

  get name(): string {
    return this.software ? "WebGL2 (software)" : "WebGL2";
  }

  static make(): GlPainter | null {
    const canvas = document.createElement("canvas");
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, preserveDrawingBuffer: true });
    if (!gl) return null;
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]] as const) {
      const shader = gl.createShader(kind);
      if (!shader || !program) return null;
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
    const buffers = [0, 1, 2, 3].map(() => gl.createBuffer());
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    const renderer = String(info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "");
    const software = /swiftshader|llvmpipe|software/i.test(renderer);
    return new GlPainter(canvas, gl, program, buffers, software);
  }

  forget(): void {
    this.loaded = null;
  }

  private load(all: Rectangles): void {
    const { gl } = this;
    const from = new Float32Array(all.length * 2);
    const to = new Float32Array(all.length * 2);
    const bytes = new Float32Array(all.length * 2);
    this.latest = new Float64Array(all.length);
    let latest = 0;
    for (let n = 0; n < all.length; n++) {
      from[2 * n] = all.from[n];
      from[2 * n + 1] = all.from[n] - from[2 * n];
      to[2 * n] = all.to[n];
      to[2 * n + 1] = all.to[n] - to[2 * n];
      bytes[2 * n] = all.low[n];
      bytes[2 * n + 1] = all.high[n] - all.low[n];
      latest = Math.max(latest, all.to[n]);
      this.latest[n] = latest;
    }
    [from, to, bytes, all.colour].forEach((data, n) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[n]);
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    });
    this.loaded = all;
  }

  paint(into: HTMLCanvasElement, all: Rectangles, seen: Window2): void {
    const { gl, canvas, program } = this;
    if (this.loaded !== all) this.load(all);
    if (canvas.width !== into.width || canvas.height !== into.height) {
      [canvas.width, canvas.height] = [into.width, into.height];
    }
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.useProgram(program);
    const first = after(this.latest, seen.from - 1);
    const last = after(all.from, seen.to);
    const high = Math.fround(seen.from);
    gl.uniform4f(gl.getUniformLocation(program, "start"), high, seen.from - high, seen.low, 0);
    gl.uniform2f(gl.getUniformLocation(program, "scale"), 1 / (seen.to - seen.from), 1 / (seen.high - seen.low));
    gl.uniform2f(gl.getUniformLocation(program, "pixel"), 1 / canvas.width, 1 / canvas.height);
    const bind = (place: number, parts: number, kind: number, bytes: number, normal: boolean) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[place]);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, parts, kind, normal, bytes, first * bytes);
      gl.vertexAttribDivisor(place, 1);
    };
    for (const place of [0, 1, 2]) bind(place, 2, gl.FLOAT, 8, false);
    bind(3, 4, gl.UNSIGNED_BYTE, 4, true);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    if (last > first) gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, last - first);
    // Waits until it is drawn: who measures the time would else measure nothing.
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, this.pixel);
    const draw = into.getContext("2d");
    draw?.clearRect(0, 0, into.width, into.height);
    draw?.drawImage(canvas, 0, 0);
  }
}
