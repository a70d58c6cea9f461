// What can be set for a conversation. An empty field leaves the choice to the server, which knows what the
// model's authors recommend.

export const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, hint: "only the likeliest tokens that add up to this" },
  { name: "top_k", label: "Top k", min: 0, max: 1000000, step: 1, hint: "only this many of the likeliest; 0 is all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "only tokens with this share of the likeliest one's chance" },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 10000000, step: 1, hint: "in tokens" },
  { name: "seed", label: "Seed", min: 0, max: 2 ** 53 - 1, step: 1, hint: "the same seed gives the same answer" },
];

export const NO_SETTINGS = Object.freeze({ system: "", sampling: Object.freeze({}) });

const LONGEST_SYSTEM = 1000000;

// Settings from anywhere, a file say, with what can't be used left out.
export function readSettings(value) {
  const sampling = {};
  for (const { name, min, max, step } of SAMPLING) {
    const number = value?.sampling?.[name];
    if (typeof number !== "number" || !(number >= min && number <= max)) continue;
    if (step === 1 && !Number.isInteger(number)) continue;
    sampling[name] = number;
  }
  const system = typeof value?.system === "string" ? value.system.slice(0, LONGEST_SYSTEM) : "";
  return { system, sampling };
}

// What is wrong with a field's text, or null. An empty text is right.
export function problemOf({ label, min, max, step }, text) {
  if (text.trim() === "") return null;
  const number = Number(text);
  if (!Number.isFinite(number)) return `${label} must be a number.`;
  if (step === 1 && !Number.isInteger(number)) return `${label} must be a whole number.`;
  if (number < min || number > max) return `${label} must be from ${min} to ${max}.`;
  return null;
}
