// The fields of a conversation's settings.

import { element } from "./dom.js";
import { SAMPLING, problemOf } from "./settings.js";

// changed: called with {title, system, sampling} when a field was changed and all are right.
export class SettingsForm {
  constructor(form, changed) {
    this.form = form;
    this.title = form.querySelector("#title");
    this.system = form.querySelector("#system");
    this.fields = SAMPLING.map((setting) => this.field(setting));
    form.addEventListener("input", () => this.isRight() && changed(this.values()));
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  field(setting) {
    const id = `setting-${setting.name}`;
    const input = element("input", {
      id,
      inputmode: "decimal",
      autocomplete: "off",
      placeholder: "default",
      "aria-describedby": `${id}-hint ${id}-problem`,
    });
    const hint = element("p", { class: "hint", id: `${id}-hint` }, [setting.hint]);
    const problem = element("p", { class: "problem", id: `${id}-problem`, role: "alert" });
    const label = element("label", { for: id }, [setting.label]);
    this.form.querySelector("#sampling").append(element("div", {}, [label, input, hint, problem]));
    return { setting, input, problem };
  }

  show({ title, settings }) {
    this.title.value = title;
    this.system.value = settings.system;
    for (const { setting, input } of this.fields) input.value = settings.sampling[setting.name] ?? "";
    this.isRight();
  }

  // Marks the fields that are wrong.
  isRight() {
    const problems = this.fields.map(({ setting, input, problem }) => {
      const text = problemOf(setting, input.value);
      input.setAttribute("aria-invalid", String(text !== null));
      if (problem.textContent !== (text ?? "")) problem.textContent = text ?? "";
      return text;
    });
    return problems.every((problem) => problem === null);
  }

  values() {
    const filled = this.fields.filter(({ input }) => input.value.trim() !== "");
    const sampling = Object.fromEntries(filled.map(({ setting, input }) => [setting.name, Number(input.value)]));
    return { title: this.title.value, system: this.system.value, sampling };
  }
}
