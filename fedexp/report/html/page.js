"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const data = JSON.parse(document.getElementById("data").textContent);

  // ---- light and dark
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("fedexp-theme", value);
      return localStorage.getItem("fedexp-theme");
    } catch {
      return null; // not allowed for files in some browsers
    }
  };
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme;
    button.setAttribute("aria-pressed", String(isDark()));
    button.textContent = isDark() ? "Light" : "Dark";
    drawAll();
  };
  button.addEventListener("click", () => setTheme(remembered(isDark() ? "light" : "dark") ?? (isDark() ? "light" : "dark")));
  system.addEventListener("change", () => root.dataset.theme || setTheme());

  // ---- figures
  const rowsOf = (name) => {
    const { rows, columns } = data.data[name];
    const value = (column, row) =>
      Array.isArray(column) ? column[row]
        : column.texts ? column.texts[column.at[row]]
        : column.same ? value(columns[column.same], row)
        : column.all;
    return Array.from({ length: rows }, (_, row) =>
      Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, value(column, row)])));
  };
  const namesIn = (spec) => [...new Set([...JSON.stringify(spec).matchAll(/"data":\{"kept":"(\w+)"\}/g)].map((found) => found[1]))];
  const looked = (node) => {
    const font = getComputedStyle(root).getPropertyValue("--sans").trim();
    const swap = { "sans-serif": font, ...(isDark() ? data.dark : {}) };
    return JSON.parse(JSON.stringify(node), (_, value) =>
      typeof value === "string" ? swap[value] ?? value : value?.kept ? { values: rowsOf(value.kept) } : value);
  };
  const draw = async (figure) => {
    const place = figure.querySelector(".plot");
    const spec = looked(data.figures[figure.id]);
    spec.description = place.dataset.description;
    const background = getComputedStyle(figure).backgroundColor;
    await vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", config: { ...looked(data.look), background, padding: 2 },
      tooltip: { theme: isDark() ? "dark" : "light" }, downloadFileName: figure.querySelector("h3, h4").textContent,
      actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    });
  };
  let turn = 0;
  const drawAll = async () => {
    const own = ++turn; // a later call takes over
    delete root.dataset.drawn;
    for (const figure of all("figure[id]")) {
      if (own !== turn) return;
      await draw(figure);
    }
    if (own === turn) root.dataset.drawn = "true";
  };
  const shown = (value) => (typeof value === "number" ? String(+value.toPrecision(5)) : value ?? "–");
  const element = (name, content, attributes = {}) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...[content].flat());
    return made;
  };
  const numbers = (figure) => {
    const rows = namesIn(data.figures[figure.id]).map(rowsOf).sort((a, b) => b.length - a.length)[0] ?? [];
    const keys = Object.keys(rows[0] ?? {});
    const title = figure.querySelector("h3, h4").textContent;
    const cell = (row, key) => element("td", shown(row[key]), { className: typeof row[key] === "number" ? "number" : "" });
    const scroll = element("div", element("table", [
      element("caption", title),
      element("thead", element("tr", keys.map((key) => element("th", key, { scope: "col" })))),
      element("tbody", rows.map((row) => element("tr", keys.map((key) => cell(row, key))))),
    ]), { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Numbers of ${title}` });
    return scroll;
  };
  for (const details of all(".numbers")) {
    details.addEventListener("toggle", () => details.querySelector(".scroll") ?? details.append(numbers(details.closest("figure"))));
  }

  // ---- tables: sort by a heading, write numbers in another form
  const order = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.order ?? cell.textContent.trim();
    const number = text === "" ? NaN : Number(text.replace("-inf", "-Infinity"));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1)
      : a.localeCompare(b, "en", { numeric: true });
  const sortBy = (head) => {
    const table = head.closest("table");
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    const direction = head.getAttribute("aria-sort") === first ? other : first;
    all("th[aria-sort]", table).forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => sign * compare(order(a, head.cellIndex), order(b, head.cellIndex))));
  };
  for (const head of all("thead tr:last-child th")) head.querySelector("button")?.addEventListener("click", () => sortBy(head));
  const writeIn = (choice, form) => {
    all("button", choice).forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.form === form)));
    for (const cell of all("td:has(> span)", choice.closest(".table"))) {
      [...cell.children].forEach((span, number) => { span.hidden = String(number) !== form; });
    }
  };
  for (const choice of all(".choice")) {
    choice.addEventListener("click", (event) => event.target.dataset.form && writeIn(choice, event.target.dataset.form));
  }

  // ---- commands, contents
  for (const copy of all(".copy")) {
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(copy.parentElement.querySelector("code").textContent);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
  }
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  all("main section[id]").forEach((section) => observer.observe(section));

  setTheme(remembered());
})();
