// How the server is doing, asked for while somebody looks.

import { element } from "./dom.js";
import { derive, readMetrics } from "./metrics.js";

const EVERY_MS = 2000;

export class Watch {
  constructor(figures, problem, api) {
    this.figures = figures;
    this.problem = problem;
    this.api = api;
    this.before = null;
    this.timer = null;
  }

  // Looks now and then on, or stops looking.
  look(on) {
    clearTimeout(this.timer);
    this.looking = on;
    if (on) this.ask();
  }

  async ask() {
    if (!document.hidden) {
      try {
        this.draw(await this.read());
        this.problem.textContent = "";
      } catch (error) {
        this.figures.replaceChildren();
        this.problem.textContent = error.message;
      }
    }
    clearTimeout(this.timer);
    if (this.looking) this.timer = setTimeout(() => this.ask(), EVERY_MS);
  }

  async read() {
    let now;
    try {
      now = readMetrics(await this.api.metrics());
    } catch (error) {
      if (error.status !== 404) throw error;
      return await this.api.load();
    }
    const at = performance.now();
    const derived = derive(now, this.before?.figures, (at - this.before?.at) / 1000);
    this.before = { figures: now, at };
    return derived;
  }

  draw(figures) {
    const rows = [];
    const row = (name, value) => rows.push(element("dt", {}, [name]), element("dd", {}, [value]));
    if (figures.running !== undefined) row("Answers being made", String(figures.running));
    if (figures.waiting !== undefined) row("Answers waiting", String(figures.waiting));
    if (figures.cacheUsage !== undefined) row("Cache in use", percent(figures.cacheUsage));
    if (typeof figures.hitRate === "number") row("Prompts found in cache", percent(figures.hitRate));
    if (typeof figures.tokensPerS === "number") row("Tokens made a second", figures.tokensPerS.toFixed(1));
    if (typeof figures.promptTokensPerS === "number") row("Prompt tokens a second", figures.promptTokensPerS.toFixed(1));
    this.figures.replaceChildren(...rows);
  }
}

function percent(share) {
  return `${(share * 100).toFixed(1)} %`;
}
