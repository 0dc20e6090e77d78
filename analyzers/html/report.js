// SPDX-License-Identifier: Apache-2.0
// The page's own buttons: light and dark, saving what is in it, all that is folded open on paper.
"use strict";

(() => {
  const root = document.documentElement;

  function switchTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  }

  /** Save text as a file, without asking anybody for it. */
  function save(text, type, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  /** A field of CSV. What a spreadsheet would take for a formula gets an apostrophe; numbers are numbers. */
  function field(text) {
    const formula = /^[=+\-@\t\r]/.test(text) && !/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text);
    const safe = formula ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function csv(table) {
    const rows = [[...table.tHead.rows[0].cells].map((cell) => cell.dataset.name || cell.textContent)];
    for (const row of table.tBodies[0].rows) {
      rows.push([...row.cells].map((cell) => cell.dataset.value ?? cell.textContent.trim()));
    }
    return rows.map((row) => row.map(field).join(",") + "\r\n").join("");
  }

  const does = {
    theme: switchTheme,
    "save-json": (button) => {
      save(document.getElementById("report-data").textContent, "application/json", button.dataset.name);
    },
    "save-csv": (button) => {
      const table = document.getElementById(button.dataset.table);
      save(csv(table), "text/csv", `${table.id}.csv`);
    },
  };
  for (const button of document.querySelectorAll("button[data-do]")) {
    button.addEventListener("click", () => does[button.dataset.do](button));
    button.hidden = false;
  }

  const opened = [];
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details:not([open])")) {
      folded.open = true;
      opened.push(folded);
    }
  });
  addEventListener("afterprint", () => {
    for (const folded of opened.splice(0)) folded.open = false;
  });
})();
