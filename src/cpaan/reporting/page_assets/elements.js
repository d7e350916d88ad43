"use strict";

// Elements are made here alone. What comes from data goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// A name that somebody else chose: its direction must not turn the text around it.
function named(text) {
  return element("bdi", {}, text);
}

function unseen(text) {
  return element("span", { class: "unseen" }, text);
}

function announce(text) {
  document.getElementById("live").textContent = text;
}

function section(title, explanation) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  const node = element(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, title),
  );
  if (explanation) node.append(element("p", { class: "quiet" }, explanation));
  document.getElementById("main").append(node);
  document.getElementById("contents").append(element("li", {}, element("a", { href: `#${id}` }, title)));
  return node;
}

function choice(label, options, chosen, change) {
  const select = element(
    "select",
    { change: () => change(select.value) },
    options.map(([value, text]) => element("option", { value, selected: value === chosen }, text)),
  );
  return element("label", {}, label, select);
}

function radios(title, name, options, chosen, change) {
  const buttons = options.map(([value, text]) =>
    element(
      "label",
      {},
      element("input", { type: "radio", name, value, checked: value === chosen, change: () => change(value) }),
      text,
    ),
  );
  return element("fieldset", {}, element("legend", {}, title), buttons);
}

// Buttons that hide and show; `pressed` is a set of the shown.
function toggles(label, items, pressed, change) {
  const list = element("ul", { class: "legend", "aria-label": label });
  for (const item of items) {
    const button = element(
      "button",
      {
        type: "button",
        "aria-pressed": String(pressed.has(item.key)),
        title: item.title,
        click: () => {
          if (pressed.has(item.key)) pressed.delete(item.key);
          else pressed.add(item.key);
          button.setAttribute("aria-pressed", String(pressed.has(item.key)));
          change();
        },
      },
      item.sign,
      named(item.text),
    );
    list.append(element("li", {}, button));
  }
  return list;
}

function dataTable(summary, header, rows) {
  const head = element(
    "tr",
    {},
    header.map((text) => element("th", { scope: "col" }, named(text))),
  );
  const body = rows.map((cells) =>
    element(
      "tr",
      {},
      cells.map((text, i) =>
        i ? element("td", {}, named(String(text))) : element("th", { scope: "row" }, named(String(text))),
      ),
    ),
  );
  return element(
    "details",
    {},
    element("summary", {}, summary),
    element(
      "div",
      { class: "scroller", tabindex: 0, role: "region", "aria-label": summary },
      element("table", {}, element("thead", {}, head), element("tbody", {}, body)),
    ),
  );
}

// Draws into a node now and whenever its width changes.
function whenever(node, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(node.clientWidth);
    if (now && now !== width) draw((width = now));
  }).observe(node);
  return () => width && draw(width);
}

function rounded(value, digits = 1) {
  return value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1");
}

function percent(pair) {
  return pair === null ? "–" : rounded(pair[0]) + (pair[1] === null ? "" : ` ± ${rounded(pair[1])}`);
}

function signed(pair) {
  return pair === null ? "–" : (pair[0] >= 0 ? "+" : "") + percent(pair);
}
