// What /metrics tells (https://prometheus.io/docs/instrumenting/exposition_formats/), whatever prefix the
// server gives its names.

const SAMPLE = /^[a-zA-Z_][a-zA-Z0-9_]*:([a-z_]+)(?:\{[^}]*\})? (\S+)$/;

const NAMES = {
  num_requests_running: "running",
  num_requests_waiting: "waiting",
  kv_cache_usage_perc: "cacheUsage",
  prefix_cache_queries_total: "prefixQueries",
  prefix_cache_hits_total: "prefixHits",
  prompt_tokens_total: "promptTokens",
  generation_tokens_total: "generatedTokens",
};

// The figures that are there, by our names.
export function readMetrics(text) {
  const figures = {};
  for (const line of text.split("\n")) {
    const found = SAMPLE.exec(line);
    const name = found && Object.hasOwn(NAMES, found[1]) ? NAMES[found[1]] : null;
    if (name) figures[name] = (figures[name] ?? 0) + Number(found[2]);
  }
  return figures;
}

// Shares and speeds. before: earlier figures, or null; seconds: since then.
export function derive(now, before, seconds) {
  const since = (name) => now[name] - before[name];
  const known = before && seconds > 0 && since("generatedTokens") >= 0;
  return {
    ...now,
    hitRate: now.prefixQueries > 0 ? now.prefixHits / now.prefixQueries : null,
    tokensPerS: known ? since("generatedTokens") / seconds : null,
    promptTokensPerS: known ? since("promptTokens") / seconds : null,
  };
}
